import { copyOf, unwritten } from '../base/own-memory.js'

/** bytes from which on memory is used again; an array of fewer costs about as much as its copy */
const LEAST = 512
/** bytes of the longest that is kept */
const MOST = 2 ** 20
/** bytes that are kept: those of 64 requests under way that have half of the default ring for themselves */
const MOST_KEPT = 4 * 2 ** 20

/** Memory that is free, by the logarithm of its length. */
class Free {
  bytes = 0
  readonly #byLength: Uint8Array[][] = []

  take(log2: number): Uint8Array | undefined {
    const memory = this.#byLength[log2]?.pop()
    if (memory !== undefined) this.bytes -= memory.length
    return memory
  }

  put(memory: Uint8Array): void {
    if (this.bytes + memory.length > MOST_KEPT) return
    this.bytes += memory.length
    const log2 = 31 - Math.clz32(memory.length)
    const list = this.#byLength[log2] ?? []
    this.#byLength[log2] = list
    list.push(memory)
  }
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
    const log2 = 32 - Math.clz32(length - 1)
    const memory = this.#free.deref()?.take(log2) ?? unwritten(2 ** log2)
    memory.set(bytes)
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
