import { deferred, VerbsError } from '@rdmakit/verbs'
import type { Link } from './link.js'
import { SEND } from './native.js'

/** A frame that waits for room. */
interface Waiting {
  readonly type: number
  readonly correlation: number
  readonly bytes: Uint8Array
  /** whether it is still to be sent when its turn comes */
  readonly wanted: () => boolean
  readonly resolve: () => void
  readonly reject: (reason: unknown) => void
}

/**
 * The outgoing frames of a connection: batches them by turns of the event loop, and keeps those that
 * must go but find no room, in order.
 */
export class Outbox {
  readonly #link: Link
  readonly #failed: () => VerbsError
  readonly #flush = () => this.flush()
  readonly #waiting: Waiting[] = []
  #writable = deferred<void>()
  #progress: (() => void) | undefined
  #full = false
  #flushScheduled = false
  #ended = false

  /** @param failed called when the queue pair takes no more; what it returns is thrown */
  constructor(link: Link, failed: () => VerbsError) {
    this.#link = link
    this.#failed = failed
    this.#writable.promise.catch(() => {})
  }

  /** Sends if there is room and nothing waits. @throws VerbsError EMSGSIZE, ECONNRESET */
  send(type: number, correlation: number, bytes: Uint8Array): boolean {
    // What waits goes first; its turn ends with a writable event of its own.
    if (this.#waiting.length === 0) return this.#try(type, correlation, bytes)
    this.#full = true
    return false
  }

  /** Sends, waiting for room as long as `wanted`. Undefined when it is done already. */
  post(
    type: number,
    correlation: number,
    bytes: Uint8Array,
    wanted: () => boolean = () => true,
  ): Promise<void> | undefined {
    if (this.#ended) return undefined
    try {
      if (this.send(type, correlation, bytes)) return undefined
    } catch (failure) {
      return Promise.reject(failure)
    }
    const { promise, resolve, reject } = deferred<void>()
    this.#waiting.push({ type, correlation, bytes, wanted, resolve, reject })
    return promise
  }

  /** Resolves when there is room for what was refused; at once when nothing was. */
  writable(): Promise<void> {
    return this.#full ? this.#writable.promise : Promise.resolve()
  }

  flush(): void {
    this.#flushScheduled = false
    // When the queue is full, a writable event follows.
    if (!this.#ended && this.#link.flush() === SEND.failed) this.#failed()
  }

  /** Posts what waits for the end of the turn. */
  flushScheduled(): void {
    if (this.#flushScheduled) this.flush()
  }

  /** A writable event. @param room the frame that was refused fits now */
  onWritable(room: boolean): void {
    if (this.#ended) return
    this.flush()
    this.#progress?.()
    if (room && this.#sendWaiting()) {
      this.#full = false
      const waiters = this.#writable
      this.#writable = deferred<void>()
      this.#writable.promise.catch(() => {})
      waiters.resolve()
    }
  }

  /** Resolves when a close frame and all before it have completed, or the connection has ended. */
  async drained(): Promise<void> {
    this.flush()
    while (!this.#ended && !this.#link.drained())
      await new Promise<void>((resolve) => {
        this.#progress = resolve
      })
  }

  /** The connection has ended. */
  end(reason: VerbsError): void {
    this.#ended = true
    for (const { reject } of this.#waiting.splice(0)) reject(reason)
    this.#writable.reject(reason)
    this.#progress?.()
  }

  /** False when the first of them found no room again. */
  #sendWaiting(): boolean {
    let done = 0
    try {
      for (const { type, correlation, bytes, wanted, resolve, reject } of this.#waiting) {
        try {
          if (wanted() && !this.#try(type, correlation, bytes)) return false
          resolve()
        } catch (failure) {
          reject(failure)
        }
        done++
      }
      return true
    } finally {
      this.#waiting.splice(0, done)
    }
  }

  #try(type: number, correlation: number, bytes: Uint8Array): boolean {
    switch (this.#link.send(type, correlation, bytes)) {
      case SEND.done:
        if (!this.#flushScheduled) {
          this.#flushScheduled = true
          this.#link.poller.scheduleFlush(this.#flush)
        }
        return true
      case SEND.full:
        this.#full = true
        return false
      case SEND.tooLong:
        throw new VerbsError(
          'EMSGSIZE',
          'send',
          this.#link.id.description,
          `the message is ${bytes.length} bytes, at most ${this.#link.maxMessageLength} fit the peer's ring`,
        )
      default:
        throw this.#failed()
    }
  }
}
