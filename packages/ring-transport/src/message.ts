import { UsageError } from '@rdmakit/verbs'

/** @internal what a message needs of its connection */
export interface MessageSource {
  readonly ringBytes: Uint8Array
  /** gives back the ring up to the oldest message that is still held */
  released(): void
}

/**
 * A message in the ring. Its bytes are a view of registered memory, not a copy: they are good until
 * the message is released, which happens by itself when the callback that got it returns. To keep
 * them longer either `copy()`, or `retain()` now and `release()` later. A message that is held stops
 * the ring behind it from being reused, so a few held for long, or many for short, stall the sender.
 */
export class RingMessage {
  /** bytes of the payload */
  readonly length: number
  /** @internal position of the frame's end, in 64-byte units modulo 2^32 */
  readonly end: number
  /** @internal */
  readonly correlation: number
  readonly #source: MessageSource
  readonly #offset: number
  #holds = 1

  /** @internal */
  constructor(source: MessageSource, offset: number, length: number, end: number, correlation: number) {
    this.#source = source
    this.#offset = offset
    this.length = length
    this.end = end
    this.correlation = correlation
  }

  /** True once {@link data} can no longer be read. */
  get isReleased(): boolean {
    return this.#holds === 0
  }

  /**
   * The payload, as a view of the ring. A peer that breaks the protocol could still write there while
   * you read: check a `copy()`, not the view, when that matters.
   * @throws UsageError after the release: the memory belongs to the next message
   */
  get data(): Uint8Array {
    this.#require()
    return this.#source.ringBytes.subarray(this.#offset, this.#offset + this.length)
  }

  /** The payload in memory of its own. @throws UsageError after the release */
  copy(): Uint8Array<ArrayBuffer> {
    this.#require()
    return this.#source.ringBytes.slice(this.#offset, this.#offset + this.length) as Uint8Array<ArrayBuffer>
  }

  /** The payload read as UTF-8. @throws UsageError after the release */
  text(): string {
    return DECODER.decode(this.data)
  }

  /** Keeps the bytes until one more {@link release}. @throws UsageError after the release */
  retain(): this {
    this.#require()
    this.#holds++
    return this
  }

  /** Lets go of one {@link retain}. The last one gives the ring's bytes back; more are ignored. */
  release(): void {
    if (this.#holds === 0) return
    if (--this.#holds === 0) this.#source.released()
  }

  #require(): void {
    if (this.#holds === 0)
      throw new UsageError(
        'this message is released; call copy() or retain() before the callback that got it returns',
      )
  }
}

const DECODER = new TextDecoder()
