import { SEND, TYPE } from '../native.js'
import { unitLog2, type Version } from '../setup/handshake.js'

/** The native code, as a staging writer uses it. */
export interface StagingPort {
  /**
   * Asks for room for a frame of so many bytes behind `next`; then the words hold where to go on and up to where. One
   * of {@link SEND}.
   */
  reserve(next: number, bytes: number): number
  /** Posts what is laid out up to `next` as one batch. One of {@link SEND}. */
  flush(next: number, signaled: boolean): number
}

/** How much goes with one doorbell. */
export interface BatchLimits {
  readonly frames: number
  readonly bytes: number
}

/** bytes of a frame before its payload, at most */
export const HEADER = 16
/** … of a frame of version 3 that has no correlation */
const SHORT_HEADER = 8
/** where the type is in the first word of version 3, behind the length */
const TYPE_SHIFT = 28

/**
 * The staging region as JavaScript fills it: frames are laid out here, in the places where they will be
 * in the peer's ring, and leave in batches. Native code is asked only when the room that it gave last is
 * used up. Positions count units modulo 2^32, as integers with a sign, whose differences are right.
 */
export class StagingWriter {
  /** the region that frames are laid out in */
  readonly bytes: Uint8Array
  readonly #frames: Int32Array
  readonly #port: StagingPort
  /** next, window, posted: see NativePoller.reserve */
  readonly #words: Int32Array
  readonly #compact: boolean
  readonly #unitLog2: number
  readonly #mask: number
  readonly #batchFrames: number
  readonly #batchUnits: number
  #next = 0
  #window = 0
  #posted = 0
  #count = 0
  #units = 0
  #blocked = false
  #signaled = false

  /**
   * @param version of the frames
   * @param staging the region, of which the first `2 ** log2Capacity` bytes are frames
   * @param words the three words that native code answers in
   */
  constructor(
    version: Version,
    staging: ArrayBuffer,
    log2Capacity: number,
    words: Int32Array,
    port: StagingPort,
    limits: BatchLimits,
  ) {
    this.bytes = new Uint8Array(staging, 0, 2 ** log2Capacity)
    this.#frames = new Int32Array(staging, 0, 2 ** (log2Capacity - 2))
    this.#compact = version === 3
    this.#unitLog2 = unitLog2(version)
    this.#mask = 2 ** (log2Capacity - this.#unitLog2) - 1
    this.#words = words
    this.#port = port
    this.#batchFrames = limits.frames
    this.#batchUnits = Math.max(1, limits.bytes >>> this.#unitLog2)
  }

  // --- hot path: no allocation, and no call out of JavaScript but for each batch ---

  /**
   * Room for a frame of a type with `length` bytes of payload: the payload's offset in {@link bytes}, or one of
   * {@link SEND} as `-code`.
   */
  place(type: number, length: number): number {
    const header = this.#header(type)
    const units = this.#unitsOf(header + length)
    if (units > ((this.#window - this.#next) | 0)) {
      const result = this.#port.reserve(this.#next, header + length)
      this.#read()
      if (result !== SEND.done) return -result
    }
    this.#units = units
    return ((this.#next & this.#mask) << this.#unitLog2) + header
  }

  #header(type: number): number {
    return this.#compact && (type === TYPE.data || type === TYPE.close) ? SHORT_HEADER : HEADER
  }

  #unitsOf(bytes: number): number {
    return (bytes + (1 << this.#unitLog2) - 1) >>> this.#unitLog2
  }

  /**
   * Completes the frame that {@link place} gave room for, of the same type. When a batch is full
   * it is posted: one of {@link SEND}.
   */
  commit(type: number, length: number, correlation: number, immediate: number): number {
    const at = (this.#next & this.#mask) << (this.#unitLog2 - 2)
    const frames = this.#frames
    if (this.#compact) {
      frames[at] = length | (type << TYPE_SHIFT)
      frames[at + 1] = immediate
      if (this.#header(type) === HEADER) {
        frames[at + 2] = correlation
        frames[at + 3] = 0
      }
    } else {
      frames[at] = length
      frames[at + 1] = type
      frames[at + 2] = correlation
      frames[at + 3] = immediate
    }
    this.#next = (this.#next + this.#units) | 0
    this.#count++
    if (this.#count < this.#batchFrames && ((this.#next - this.#posted) | 0) < this.#batchUnits)
      return SEND.done
    // A batch that found no credit goes with the writable event, not with each frame behind it.
    return this.#blocked ? SEND.done : this.flush()
  }
  // --- end of the hot path ---

  /** A frame of fewer bytes than were placed takes less of the region. */
  shorten(type: number, length: number): void {
    this.#units = this.#unitsOf(this.#header(type) + length)
  }

  /** From now on each batch tells when it has left: the last frames of a connection are on their way. */
  signalAll(): void {
    this.#signaled = true
    // At once, as native code also posts by itself, in `reserve`.
    this.#port.flush(this.#next, true)
    this.#read()
  }

  /** Posts staged frames. {@link SEND}.full: a writable event follows. */
  flush(): number {
    if (this.#next === this.#posted) return SEND.done
    const result = this.#port.flush(this.#next, this.#signaled)
    this.#read()
    this.#blocked = result === SEND.full
    return result
  }

  #read(): void {
    const words = this.#words
    const posted = words[2] as number
    if (posted !== this.#posted) {
      this.#count = 0
      this.#blocked = false
    }
    this.#next = words[0] as number
    this.#window = words[1] as number
    this.#posted = posted
  }
}
