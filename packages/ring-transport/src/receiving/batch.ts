import type { RingMessage } from './message.js'

/** Messages that arrived together, in order. Those that are views are released when the next batch is asked for. */
export class RingBatch implements Iterable<RingMessage> {
  readonly messages: readonly RingMessage[]

  /** @internal */
  constructor(messages: readonly RingMessage[]) {
    this.messages = messages
  }

  get length(): number {
    return this.messages.length
  }

  [Symbol.iterator](): IterableIterator<RingMessage> {
    return this.messages[Symbol.iterator]()
  }

  /** Lets go of all views now. What the program has retained stays, and so do copies. Idempotent. */
  release(): void {
    if (this.#released) return
    this.#released = true
    for (const message of this.messages) message.release()
  }

  #released = false
}
