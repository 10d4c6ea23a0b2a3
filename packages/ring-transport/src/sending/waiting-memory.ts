import { copyOf, unwritten } from '../base/own-memory.js'

/** bytes from which on memory is used again; an array of fewer costs about as much as its copy */
const LEAST = 512
/** bytes of the longest that is kept */
const MOST = 2 ** 20
/** bytes that are kept: more than enough for the half of 64 requests of 64 KiB that has no room in the default ring */
const MOST_KEPT = 4 * 2 ** 20

/** Memory that is free, by its length. */
class Free {
  bytes = 0
  readonly #byLength = new Map<number, Uint8Array[]>()

  take(length: number): Uint8Array | undefined {
    const memory = this.#byLength.get(length)?.pop()
    if (memory !== undefined) this.bytes -= length
    return memory
  }

  put(memory: Uint8Array): void {
    const { length } = memory
    if (this.bytes + length > MOST_KEPT) return
    this.bytes += length
    const list = this.#byLength.get(length)
    if (list === undefined) this.#byLength.set(length, [memory])
    else list.push(memory)
  }
}

/** @returns bytes of the memory for so many: four lengths to each power of two, so that at most a quarter is for nothing */
function rounded(length: number): number {
  const step = 2 ** (29 - Math.clz32(length - 1))
  return Math.ceil(length / step) * step
}

/**
 * Memory for copies of bytes that wait to be sent. Most is used again soon, while it is in the caches: made anew, the
 * copies of requests of 32 KiB took longer than all else. The garbage collector may have what is free.
 */
export class WaitingMemory {
  #free = new WeakRef(new Free())

  /** @returns a copy, and the memory to {@link giveBack} when nobody reads the copy any more, if it may serve again */
  copy(bytes: Uint8Array): { readonly copy: Uint8Array; readonly memory: Uint8Array | undefined } {
    const { length } = bytes
    // Those that were detached have no length.
    if (length < LEAST || length > MOST) return { copy: copyOf(bytes), memory: undefined }
    const whole = rounded(length)
    const memory = this.#free.deref()?.take(whole) ?? unwritten(whole)
    // Shared memory may grow meanwhile.
    memory.set(bytes.subarray(0, length))
    return { copy: memory.subarray(0, length), memory }
  }

  /** @param memory that of a copy which nobody has any more */
  giveBack(memory: Uint8Array): void {
    let free = this.#free.deref()
    if (free === undefined) {
      free = new Free()
      this.#free = new WeakRef(free)
    }
    free.put(memory)
  }
}
