import { SEND } from './native.js'

/** What a lane asks of native code. */
export interface LanePort {
  /** Asks for room behind `next`; then the words hold where to go on and up to where. One of {@link SEND}. */
  reserve(next: number, length: number): number
  /** Posts what is laid out up to `next` as one batch. One of {@link SEND}. */
  flush(next: number, signaled: boolean): number
}

/** How much goes with one doorbell. */
export interface BatchLimits {
  readonly frames: number
  readonly bytes: number
}

const UNIT_LOG2 = 6
/** bytes of a frame before its payload */
export const HEADER = 16
/** words of 32 bits in a unit, as a power of two */
const WORDS_LOG2 = 4

/**
 * The staging region as JavaScript fills it: frames are laid out here, in the places where they will be
 * in the peer's ring, and leave in batches. Native code is asked only when the room that it gave last is
 * used up. Positions count units modulo 2^32, as integers with a sign, whose differences are right.
 */
export class Lane {
  /** the region that frames are laid out in */
  readonly bytes: Uint8Array
  readonly #frames: Int32Array
  readonly #port: LanePort
  /** next, window, posted: see NativePoller.reserve */
  readonly #words: Int32Array
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
   * @param staging the region, of which the first `2 ** log2Capacity` bytes are frames
   * @param words the three words that native code answers in
   */
  constructor(
    staging: ArrayBuffer,
    log2Capacity: number,
    words: Int32Array,
    port: LanePort,
    limits: BatchLimits,
  ) {
    this.bytes = new Uint8Array(staging, 0, 2 ** log2Capacity)
    this.#frames = new Int32Array(staging, 0, 2 ** (log2Capacity - 2))
    this.#mask = 2 ** (log2Capacity - UNIT_LOG2) - 1
    this.#words = words
    this.#port = port
    this.#batchFrames = limits.frames
    this.#batchUnits = Math.max(1, limits.bytes >>> UNIT_LOG2)
  }

  // --- hot path: no allocation, and no call out of JavaScript but for each batch ---

  /** Room for a payload of `length` bytes: its offset in {@link bytes}, or one of {@link SEND} as `-code`. */
  place(length: number): number {
    const units = (length + HEADER + 63) >>> UNIT_LOG2
    if (units > ((this.#window - this.#next) | 0)) {
      const result = this.#port.reserve(this.#next, length)
      this.#read()
      if (result !== SEND.done) return -result
    }
    this.#units = units
    return ((this.#next & this.#mask) << UNIT_LOG2) + HEADER
  }

  /**
   * Completes the frame that {@link place} gave room for, of at most as many bytes. When a batch is full
   * it is posted: one of {@link SEND}.
   */
  commit(type: number, length: number, correlation: number, immediate: number): number {
    const at = (this.#next & this.#mask) << WORDS_LOG2
    const frames = this.#frames
    frames[at] = length
    frames[at + 1] = type
    frames[at + 2] = correlation
    frames[at + 3] = immediate
    this.#next = (this.#next + this.#units) | 0
    this.#count++
    if (this.#count < this.#batchFrames && ((this.#next - this.#posted) | 0) < this.#batchUnits)
      return SEND.done
    // A batch that found no credit goes with the writable event, not with each frame behind it.
    return this.#blocked ? SEND.done : this.flush()
  }
  // --- end of the hot path ---

  /** A frame of fewer bytes than were placed takes less of the region. */
  shorten(length: number): void {
    this.#units = (length + HEADER + 63) >>> UNIT_LOG2
  }

  /** From now on each batch tells when it has left: the last frames of a connection are on their way. */
  signalAll(): void {
    this.#signaled = true
    // At once, as native code also posts by itself, in `reserve`.
    this.#port.flush(this.#next, true)
    this.#read()
  }

  /** Posts what is laid out. {@link SEND}.full: a writable event follows. */
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
