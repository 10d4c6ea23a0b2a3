import { UsageError } from '@rdmakit/verbs'
import { copyOf } from '../base/own-memory.js'
import type { CopyPool } from './copy-pool.js'

/** @internal the ring, or the memory of a transfer, that a message lies in */
export interface MessageSource {
  /** whether the bytes of released messages are made unreadable */
  readonly debug: boolean
  /** where small messages go when they move; without it each gets an ArrayBuffer of its own */
  readonly copies?: CopyPool
  /** The program gets a view of the memory, and may hand it to I/O. */
  give?(): void
  /** gives the memory back up to the oldest message that is still held */
  released(): void
}

/**
 * A message. Its bytes are its own, good for as long as anybody has it (their ArrayBuffer may hold others of the same
 * connection too: see {@link data}), unless it was taken as a *view* (`views`,
 * `viewBatches`, `consumeViews`, `handleViews`) or is an offer that was accepted.
 *
 * Those of a view are registered memory, the ring itself unless the message was too large for it: they are good until
 * it is released, which happens by itself when the callback that got it returns. To keep them longer either `copy()`,
 * or `retain()` now and `release()` later. A view that is held stops the ring behind it from being reused, so a few
 * held for long, or many for short, stall the sender.
 */
export class RingMessage {
  /** bytes of the payload */
  readonly length: number
  /** @internal position of the frame's end, in units modulo 2^32 */
  readonly end: number
  /** @internal */
  readonly correlation: number
  /** undefined: the bytes are the message's own */
  #source: MessageSource | undefined
  #memory: Uint8Array
  #offset: number
  readonly #immediate: number
  #holds = 1
  #guard: Guard | undefined

  /** @internal @param memory that of the source, or, without one, the message's own bytes, all of them */
  constructor(
    source: MessageSource | undefined,
    memory: Uint8Array,
    offset: number,
    length: number,
    end: number,
    correlation: number,
    immediate: number,
  ) {
    this.#source = source
    this.#memory = memory
    this.#offset = offset
    this.length = length
    this.end = end
    // It comes from a word with a sign.
    this.correlation = correlation >>> 0
    this.#immediate = immediate
  }

  /** The 32 bits that the sender gave with the message, without a sign; 0 when it gave none. */
  get immediate(): number {
    return this.#immediate >>> 0
  }

  /** True once {@link data} can no longer be read. */
  get isReleased(): boolean {
    return this.#holds === 0
  }

  /**
   * The payload. Like a Buffer's, its ArrayBuffer may be shared, here with other messages of the same connection: mind
   * `byteOffset`, and {@link copy} what is transferred to another thread, or kept for long as one small message of many.
   *
   * Of a view it is the ring, for who copies or adds up its bytes: a peer that breaks the protocol can
   * still write there while you read. So take a {@link copy} before you decode, parse, check or compare: what was
   * looked at once may be different the second time, and a decoder that measures first (TextDecoder,
   * Buffer.toString) writes beyond its end then, which ends the process or worse.
   * @throws UsageError after the release: the memory belongs to the next message
   */
  get data(): Uint8Array {
    this.#require()
    const source = this.#source
    // A view of a small array makes V8 move the array out of its heap first, which takes as long as ten copies.
    if (source === undefined) return this.#memory
    if (!source.debug) {
      source.give?.()
      return this.#memory.subarray(this.#offset, this.#offset + this.length)
    }
    this.#guard ??= new Guard(this.#memory, this.#offset, this.length)
    return this.#guard.bytes
  }

  /** The payload in an ArrayBuffer of its own. @throws UsageError after the release */
  copy(): Uint8Array<ArrayBuffer> {
    this.#require()
    return copyOf(this.#memory, this.#offset, this.length)
  }

  /** @internal the payload, in bytes of its own: the existing ones, or a copy */
  owned(): Uint8Array {
    const source = this.#source
    if (source === undefined) return this.data
    this.#require()
    if (source.copies === undefined) return copyOf(this.#memory, this.#offset, this.length)
    return source.copies.copy(this.#memory, this.#offset, this.length)
  }

  /** The payload, copied, then read as UTF-8. @throws UsageError after the release */
  text(): string {
    return DECODER.decode(this.owned())
  }

  /** Keeps the bytes of a view until one more {@link release}. @throws UsageError after the release */
  retain(): this {
    this.#require()
    this.#holds++
    return this
  }

  /** Lets go of one {@link retain}. The last one gives the ring's bytes back; more are ignored. */
  release(): void {
    const source = this.#source
    if (source === undefined || this.#holds === 0) return
    if (--this.#holds > 0) return
    if (source.debug) {
      this.#guard ??= new Guard(this.#memory, this.#offset, 0)
      this.#guard.close()
    }
    source.released()
  }

  /** @internal whether its bytes are its own, so that there is nothing to release */
  get isOwn(): boolean {
    return this.#source === undefined
  }

  /** @internal whether its part of the ring is still needed */
  get isHeld(): boolean {
    return this.#source !== undefined && this.#holds > 0
  }

  /** @internal copies the bytes into the array from `at` on, and lets go of them */
  moveInto(array: Uint8Array, at: number): void {
    array.set(this.#memory.subarray(this.#offset, this.#offset + this.length), at)
    this.release()
  }

  /**
   * @internal moves the bytes to memory of their own, which needs no release, and gives those of the ring back. Nobody has
   * got any of them yet
   */
  move(): this {
    const source = this.#source
    if (source === undefined) return this
    this.#memory = this.owned()
    this.#offset = 0
    this.#source = undefined
    source.released()
    return this
  }

  /** @internal */
  show(view: RingView): void {
    const source = this.#source
    source?.give?.()
    view.set(this.#memory, this.#offset, this.length, this.#immediate, source?.debug === true)
  }

  #require(): void {
    if (this.#holds === 0) throw usedAfterRelease(this.#guard)
  }
}

/**
 * What `drain` hands out: one object, used again for each message, so that a program that polls
 * allocates nothing. All of it is good until the callback returns.
 */
export class RingView {
  /**
   * memory that the message lies in: its bytes are those from `offset` to `offset + length`, and the peer may write there;
   * see {@link data}
   */
  bytes: Uint8Array = NOTHING
  /** bytes from the start of {@link bytes} to the payload */
  offset = 0
  /** bytes of the payload */
  length = 0
  #immediate = 0
  #guard: Guard | undefined

  /** The 32 bits that the sender gave with the message, without a sign; 0 when it gave none. */
  get immediate(): number {
    return this.#immediate >>> 0
  }

  /**
   * The payload as a view of the memory. It allocates the view: use `bytes` and `offset` where that matters. The peer may
   * write there, as with {@link RingMessage.data}: decode, parse, check and compare a {@link copy}.
   */
  get data(): Uint8Array {
    return this.bytes.subarray(this.offset, this.offset + this.length)
  }

  /** The payload in memory of its own. */
  copy(): Uint8Array<ArrayBuffer> {
    return copyOf(this.bytes, this.offset, this.length)
  }

  /** The payload, copied, then read as UTF-8. */
  text(): string {
    return DECODER.decode(this.copy())
  }

  /** @internal hot path */
  set(memory: Uint8Array, offset: number, length: number, immediate: number, debug: boolean): void {
    this.bytes = memory
    this.offset = offset
    this.length = length
    this.#immediate = immediate
    if (debug) this.#protect()
  }

  #protect(): void {
    this.#guard = new Guard(this.bytes, this.offset, this.length)
    this.bytes = this.#guard.bytes
    this.offset = 0
  }

  /** @internal the callback has returned */
  clear(): void {
    if (this.#guard !== undefined) this.#unprotect(this.#guard)
  }

  #unprotect(guard: Guard): void {
    guard.close()
    this.#guard = undefined
    this.bytes = NOTHING
    this.length = 0
  }
}

/**
 * A message's bytes in debug mode: a copy in a buffer of its own, which is detached at the release. A view
 * that was kept is empty from then on, its elements are undefined, and a DataView of it throws.
 */
class Guard {
  readonly bytes: Uint8Array<ArrayBuffer>
  released: Error | undefined

  constructor(memory: Uint8Array, offset: number, length: number) {
    this.bytes = copyOf(memory, offset, length)
  }

  close(): void {
    structuredClone(this.bytes.buffer, { transfer: [this.bytes.buffer] })
    this.released = new Error('it was released here')
  }
}

function usedAfterRelease(guard: Guard | undefined): UsageError {
  const failure = new UsageError(
    'this message is released; call copy() or retain() before the callback that got it returns',
  )
  if (guard?.released !== undefined) failure.cause = guard.released
  return failure
}

const NOTHING = new Uint8Array()
const DECODER = new TextDecoder()
