import type { RingMessage } from './message.js'

/** @internal a place in the order of messages for one that is not there yet: a large one, under way */
export class Place {
  /** the message, null when there will be none, undefined while it is under way */
  message: RingMessage | null | undefined
  /** called once it is no longer awaited here: it was taken, or is not wanted */
  onGone: (() => void) | undefined
  readonly #settled: (place: Place) => void
  #discarded = false

  constructor(settled: (place: Place) => void) {
    this.#settled = settled
  }

  /** @param message null: there is none after all, and those behind it continue */
  settle(message: RingMessage | null): void {
    if (this.message !== undefined) return
    this.message = message
    if (this.#discarded) message?.release()
    else this.#settled(this)
  }

  get isDiscarded(): boolean {
    return this.#discarded
  }

  /** The message is not wanted any more, whenever it comes. */
  discard(): void {
    this.#discarded = true
    this.message?.release()
    this.gone()
  }

  /** The message has been taken, and is not kept by what still leads here: until V8 collects everything that may be much. */
  gone(): void {
    const { onGone } = this
    this.onGone = undefined
    this.message &&= null
    onGone?.()
  }
}
