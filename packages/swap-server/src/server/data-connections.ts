import { setTimeout as delay } from 'node:timers/promises'
import type { CompletionQueue, ConnectionId, ProtectionDomain } from '@rdmakit/verbs'
import { Refusal } from '../protocol/refusal.js'

/** How long a session's resumption waits for the device to destroy its queue pairs, and the interval of checks. */
const END_MS = 2_000
const LOOK_MS = 20

/** The data connections of one session: queue pairs in its protection domain that post nothing. */
export class DataConnections {
  readonly #protectionDomain: ProtectionDomain
  readonly #open = new Set<ConnectionId>()
  /** those that are closed; one that the device has not destroyed yet may still write */
  readonly #leaving = new Set<ConnectionId>()
  #completionQueue: CompletionQueue | undefined
  #places = 0

  constructor(protectionDomain: ProtectionDomain) {
    this.#protectionDomain = protectionDomain
  }

  /** Those that are open. */
  get size(): number {
    return this.#open.size
  }

  /** Open ones and those that the device has not destroyed yet. */
  get present(): number {
    for (const id of this.#leaving) if (id.destroyed) this.#leaving.delete(id)
    return this.#open.size + this.#leaving.size
  }

  /** How many it has had at once at most: so many it can have again after a link has broken. */
  get places(): number {
    return this.#places
  }

  async accept(id: ConnectionId): Promise<void> {
    this.#completionQueue ??= id.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(this.#protectionDomain, {
      sendQueue: this.#completionQueue,
      maxSend: 1,
      maxReceive: 1,
      maxInlineData: 0,
    })
    this.#places = Math.max(this.#places, this.present + 1)
    this.#open.add(id)
    void id.disconnected.then(() => this.#close([id]))
    await id.accept()
  }

  /**
   * What the client has posted has landed when this is over, or never will: its queue pairs are destroyed. As a rule
   * it is over at once.
   * @param waiting called now and then while it is not
   * @throws Refusal ETIMEDOUT when the device is not done with them; the client tries again
   */
  end(waiting: () => void): Promise<void> | undefined {
    this.#close(this.#open)
    return this.present === 0 ? undefined : this.#ends(waiting)
  }

  async #ends(waiting: () => void): Promise<void> {
    const deadline = performance.now() + END_MS
    while (this.present > 0) {
      waiting()
      if (performance.now() >= deadline)
        throw new Refusal(
          'ETIMEDOUT',
          `the device has not destroyed all queue pairs of the session yet, ${this.#leaving.size} are left; try again`,
        )
      // The device gives no notification.
      await delay(LOOK_MS)
      // The previous owner of the session may have made another one meanwhile.
      this.#close(this.#open)
    }
  }

  /** The session is over: closes them, and waits for nothing. Their protection domain goes next. */
  close(): void {
    this.#close(this.#open)
  }

  /** Behind the end of their protection domain. */
  closeQueue(): void {
    this.#completionQueue?.close()
  }

  #close(ids: Iterable<ConnectionId>): void {
    for (const id of [...ids]) {
      this.#open.delete(id)
      id.close()
      this.#leaving.add(id)
    }
  }
}
