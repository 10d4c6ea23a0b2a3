import { markAsUntransferable } from 'node:worker_threads'
import { copyOf } from '../base/own-memory.js'

/**
 * @internal Memory for copies of a connection's small messages, several to an ArrayBuffer, as Node has it for Buffers: an
 * ArrayBuffer of its own costs each message three times its copy. Bytes are written once, before anybody has them, and
 * those beside them are of the same peer.
 */
export class CopyPool {
  #memory = new Uint8Array()
  #used = 0
  #next = SMALLEST

  /** @returns `length` bytes of `memory`, beginning on a multiple of 8 */
  copy(memory: Uint8Array, offset: number, length: number): Uint8Array<ArrayBuffer> {
    if (length <= IN_HEAP || length > MOST) return copyOf(memory, offset, length)
    // Where it was detached all the same (ArrayBuffer.prototype.transfer), it has no room.
    if (this.#used + length > this.#memory.length) this.#renew()
    const at = this.#used
    this.#used = (at + length + 7) & ~7
    const copy = new Uint8Array(this.#memory.buffer, at, length)
    copy.set(memory.subarray(offset, offset + length))
    return copy
  }

  #renew(): void {
    this.#memory = new Uint8Array(this.#next)
    // Who transfers one message would take the others with it.
    markAsUntransferable(this.#memory.buffer)
    this.#used = 0
    this.#next = Math.min(2 * this.#next, LARGEST)
  }
}

/** bytes up to which V8 has an array in its heap, without an ArrayBuffer */
const IN_HEAP = 64
/** bytes from which on an ArrayBuffer of its own costs little beside the copy */
const MOST = 2048
/** bytes; a connection with few messages has little of it, and one message that is kept keeps no more */
const SMALLEST = 2048
const LARGEST = 16_384
