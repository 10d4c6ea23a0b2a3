import type { RingConnection } from '@rdmakit/ring-transport'

/** The treatment of a subscriber that is slower than its publications, once its queue is full. */
export type Policy = 'drop' | 'cut'

/** A message to be published: `bytes` are gone when the publishing is done, `copy()` is made once for all. */
export interface Outgoing {
  readonly bytes: Uint8Array
  copy(): Buffer
}

/**
 * One subscriber of the hub. As long as its ring has room a message goes straight there. Else it waits in a
 * queue that is bounded in bytes; a message that does not fit drives out the oldest ones (`drop`), or ends
 * the connection (`cut`). Other subscribers never wait for it.
 */
export class Subscriber {
  sent = 0
  dropped = 0
  readonly #connection: RingConnection
  readonly #policy: Policy
  readonly #limit: number
  readonly #queue: Buffer[] = []
  #queued = 0
  /** dropped since the last one that was sent; the next one tells, as its immediate */
  #missed = 0
  #pumping = false

  /** @param limit bytes that may wait */
  constructor(connection: RingConnection, policy: Policy, limit: number) {
    this.#connection = connection
    this.#policy = policy
    this.#limit = limit
  }

  deliver(message: Outgoing): void {
    if (!this.#connection.isOpen) return
    if (message.bytes.length > this.#connection.maxMessageLength) this.#drop()
    else if (this.#queue.length > 0 || !this.#send(message.bytes)) this.#enqueue(message.copy())
  }

  #send(bytes: Uint8Array): boolean {
    if (!this.#connection.send(bytes, this.#missed)) return false
    this.#missed = 0
    this.sent++
    return true
  }

  #enqueue(message: Buffer): void {
    if (this.#policy === 'cut' && this.#queued + message.length > this.#limit) {
      this.#drop()
      void this.#connection.close({ drain: false })
      return
    }
    while (this.#queue.length > 0 && this.#queued + message.length > this.#limit) {
      this.#queued -= this.#queue.shift()?.length ?? 0
      this.#drop()
    }
    this.#queue.push(message)
    this.#queued += message.length
    if (!this.#pumping) void this.#pump()
  }

  #drop(): void {
    this.dropped++
    this.#missed++
  }

  /** Sends what waits, as the ring gets room. */
  async #pump(): Promise<void> {
    this.#pumping = true
    try {
      while (this.#queue.length > 0) {
        await this.#connection.writable()
        for (let next = this.#queue[0]; next !== undefined && this.#send(next); next = this.#queue[0]) {
          this.#queue.shift()
          this.#queued -= next.length
        }
      }
    } catch {
      // The connection has ended, and with it the wish.
      this.#queue.length = 0
      this.#queued = 0
    } finally {
      this.#pumping = false
    }
  }
}
