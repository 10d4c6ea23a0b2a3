import { type NativeLayout, SEND, TYPE } from '../native.js'
import { unitLog2, type Version, type Windows } from '../setup/ring-layout.js'

/** The native code, as a staging writer uses it. */
export interface StagingPort {
  /**
   * Asks for room for a frame of so many bytes behind `next`; then the words hold where to go on and up to where. One
   * of {@link SEND}.
   */
  reserve(next: number, bytes: number): number
  /** Posts what is laid out up to `next` as one batch. One of {@link SEND}. */
  flush(next: number, signaled: boolean): number
  /** The same, of a batch whose last payload is not at `offset` of the region yet, but still in `bytes`. */
  flushLent(next: number, signaled: boolean, offset: number, bytes: Uint8Array): number
}

/** How much goes with one doorbell. */
export interface BatchLimits {
  readonly frames: number
  readonly bytes: number
}

/** bytes of a payload from which on a copy costs more than a call into native code */
const LEAST_LENT = 16_384
/** requests and answers of the first batch of a turn in a hurry; each of the next has twice as many */
const FIRST_IN_A_HURRY = 4
/** bytes of a frame before its payload, at most */
export const HEADER = 16
/** … of a frame of version 3 that has no correlation */
const SHORT_HEADER = 8
/** where the type is in the first word of version 3, behind the length */
const TYPE_SHIFT = 28
const DATA = TYPE.data
const COMPACT_DATA = DATA << TYPE_SHIFT

/**
 * The staging region as JavaScript fills it: frames are laid out here, in the places where they will be
 * in the peer's ring, and leave in batches. Native code is asked only when the room that it gave last is
 * used up. That room never crosses the window's end, so within it a place is a number of bytes from the region's start;
 * native code counts units modulo 2^32, as integers with a sign, whose differences are right.
 */
export class StagingWriter {
  /** the region that frames are laid out in */
  readonly bytes: Uint8Array
  readonly #frames: Int32Array
  readonly #port: StagingPort
  /** see NativeLayout.staging */
  readonly #words: Int32Array
  readonly #hurry: Int32Array
  readonly #compact: boolean
  /** bytes before the payload of a data frame */
  readonly #dataHeader: number
  readonly #unitLog2: number
  /** bytes of a unit, less one */
  readonly #unitMask: number
  readonly #windows: Windows
  /** the window that frames are in, the byte where it begins, and its units less one */
  #window = 0
  #begin = 0
  #mask = 0
  readonly #batchFrames: number
  /** how many more frames than one a request or an answer counts for in the first batch of a turn in a hurry */
  readonly #hurried: number
  readonly #batchBytes: number
  #batchUnits = 0
  /** of the words, as last read: units laid out then, and their place; units posted */
  #next = 0
  #nextAt = 0
  #posted = 0
  /** where the next frame goes, where room ends, and where a frame that ends fills the batch */
  #at = 0
  #end = 0
  #batchEnd = 0
  /** frames of the batch */
  #count = 0
  /** batches of this turn, up to 31: as far as a word can be shifted */
  #batches = 0
  #blocked = false
  #signaled = false
  /** bytes of the shortest payload that {@link commitLent} takes: it fills a batch by itself */
  readonly leastLent: number
  /** during {@link commitLent}, until they are taken; and their place */
  #lent: Uint8Array | undefined
  #lentAt = 0

  /**
   * @param version of the frames
   * @param staging the region, which begins with frames
   * @param windows of the peer's ring, and so of the staging region
   * @param words the four words that native code answers in
   * @param hurry the word {@link NativeLayout.hurry}
   */
  constructor(
    version: Version,
    staging: ArrayBuffer,
    windows: Windows,
    words: Int32Array,
    hurry: Int32Array,
    port: StagingPort,
    limits: BatchLimits,
  ) {
    this.bytes = new Uint8Array(staging, 0, windows.bytes)
    this.#frames = new Int32Array(staging, 0, windows.bytes / 4)
    this.#windows = windows
    this.#batchBytes = limits.bytes
    this.#compact = version !== 2
    this.#dataHeader = this.#header(DATA)
    this.#unitLog2 = unitLog2(version)
    this.#unitMask = 2 ** this.#unitLog2 - 1
    this.#words = words
    this.#hurry = hurry
    this.#port = port
    this.#batchFrames = limits.frames
    this.#hurried = Math.max(0, Math.floor(limits.frames / FIRST_IN_A_HURRY) - 1)
    this.leastLent = Math.max(LEAST_LENT, limits.bytes)
    this.#enter(0)
  }

  // --- hot path: no allocation, and no call out of JavaScript but for each batch. V8 inlines a limited number of bytes
  // of bytecode into a caller, so what a data frame with room does not need is in functions of its own ---

  /**
   * Room for a frame of a type with `length` bytes of payload: the payload's offset in {@link bytes}, or one of
   * {@link SEND} as `-code`.
   */
  place(type: number, length: number): number {
    const at = this.#at + (type === DATA ? this.#dataHeader : this.#header(type))
    return length <= this.#end - at ? at : this.#reserve(type, length)
  }

  /**
   * Completes the frame that {@link place} gave room for, of the same type and at most as long. When a batch is full
   * it is posted: one of {@link SEND}.
   */
  commit(type: number, length: number, correlation: number, immediate: number): number {
    const at = this.#at
    let header = this.#dataHeader
    if (type === DATA && this.#compact) {
      const frames = this.#frames
      frames[at >>> 2] = length | COMPACT_DATA
      frames[(at >>> 2) + 1] = immediate
    } else {
      header = this.#write(type, length, correlation, immediate)
      if (this.#hurry[0] !== 0) this.#count += this.#hurried >>> this.#batches
    }
    const next = (at + header + length + this.#unitMask) & ~this.#unitMask
    this.#at = next
    return ++this.#count < this.#batchFrames && next < this.#batchEnd ? SEND.done : this.#flushBatch()
  }
  // --- end of the hot path ---

  /**
   * {@link commit} of a payload that is not at `at`, its {@link place}, yet: what can leave from where it is does. It may
   * change once this returns, but not in another thread before.
   */
  commitLent(type: number, bytes: Uint8Array, correlation: number, immediate: number, at: number): number {
    this.#lent = bytes
    this.#lentAt = at
    const result = this.commit(type, bytes.length, correlation, immediate)
    const taken = this.#lent === undefined
    this.#lent = undefined
    if (!taken) this.bytes.set(bytes, at)
    return result
  }

  #reserve(type: number, length: number): number {
    const header = this.#header(type)
    const result = this.#port.reserve(this.#position(), header + length)
    this.#read()
    return result === SEND.done ? this.#at + header : -result
  }

  #header(type: number): number {
    return this.#compact && (type === DATA || type === TYPE.close) ? SHORT_HEADER : HEADER
  }

  /** @returns bytes of the header */
  #write(type: number, length: number, correlation: number, immediate: number): number {
    const frames = this.#frames
    const at = this.#at >>> 2
    const header = this.#header(type)
    if (this.#compact) {
      frames[at] = length | (type << TYPE_SHIFT)
      frames[at + 1] = immediate
      if (header === HEADER) {
        frames[at + 2] = correlation
        frames[at + 3] = 0
      }
    } else {
      frames[at] = length
      frames[at + 1] = type
      frames[at + 2] = correlation
      frames[at + 3] = immediate
    }
    return header
  }

  #flushBatch(): number {
    // A batch that found no credit goes with the writable event, not with each frame behind it.
    if (this.#blocked) return SEND.done
    this.#batches = Math.min(this.#batches + 1, 31)
    return this.#post()
  }

  /** From now on each batch tells when it has left: the last frames of a connection are on their way. */
  signalAll(): void {
    this.#signaled = true
    // At once, as native code also posts by itself, in `reserve`.
    this.#port.flush(this.#position(), true)
    this.#read()
  }

  /** Posts staged frames. {@link SEND}.full: a writable event follows. */
  flush(): number {
    this.#batches = 0
    return this.#post()
  }

  #post(): number {
    const next = this.#position()
    if (next === this.#posted) return SEND.done
    const lent = this.#lent
    this.#lent = undefined
    const result =
      lent === undefined
        ? this.#port.flush(next, this.#signaled)
        : this.#port.flushLent(next, this.#signaled, this.#lentAt, lent)
    this.#read()
    this.#blocked = result === SEND.full
    return result
  }

  /** How far frames are laid out, in units. */
  #position(): number {
    return (this.#next + ((this.#at - this.#nextAt) >>> this.#unitLog2)) | 0
  }

  #enter(window: number): void {
    const log2 = this.#windows.log2Of(window)
    this.#window = window
    this.#begin = this.#windows.begin(window)
    this.#mask = 2 ** (log2 - this.#unitLog2) - 1
    // The receiver consumes one quarter of its ring while the next is laid out.
    this.#batchUnits = Math.max(1, Math.min(this.#batchBytes, 2 ** (log2 - 2)) >>> this.#unitLog2)
  }

  #read(): void {
    const words = this.#words
    if (words[3] !== this.#window) this.#enter(words[3] as number)
    const next = words[0] as number
    const window = words[1] as number
    const posted = words[2] as number
    if (posted !== this.#posted) {
      this.#count = 0
      this.#blocked = false
    }
    const at = this.#begin + ((next & this.#mask) << this.#unitLog2)
    const units = (window - next) | 0
    const staged = (next - posted) | 0
    this.#next = next
    this.#posted = posted
    this.#nextAt = at
    this.#at = at
    this.#end = at + (units << this.#unitLog2)
    this.#batchEnd = at + ((this.#batchUnits - staged) << this.#unitLog2)
  }
}
