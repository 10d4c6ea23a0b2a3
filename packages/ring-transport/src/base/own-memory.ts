import { native } from '../native.js'

/** @internal bytes of the memory, in memory of their own */
export function copyOf(memory: Uint8Array, offset = 0, length = memory.length): Uint8Array<ArrayBuffer> {
  // No view is made of a few bytes. Of many, the copy is of an array, not of a length, which would be filled with zeros
  // first: that takes as long as the copy.
  if (length <= FEW) return slice.call(memory, offset, offset + length) as Uint8Array<ArrayBuffer>
  if (length >= MANY) keepFreedMemory()
  return new Uint8Array(memory.subarray(offset, offset + length))
}

/** Not that of a Buffer, which is a view. */
const { slice } = Uint8Array.prototype
/** bytes up to which a slice is the faster copy */
const FEW = 1024
/** bytes from which on the pages of new memory cost more than the copy */
const MANY = 16_384

/** @internal memory with whatever was in it before, all of which must be written before anybody reads it */
export function unwritten(length: number): Uint8Array<ArrayBuffer> {
  if (length >= MANY) keepFreedMemory()
  return new Uint8Array(Buffer.allocUnsafeSlow(length).buffer)
}

let keepsFreedMemory = false

/** For the whole process, once, and only where there are large messages. */
function keepFreedMemory(): void {
  if (keepsFreedMemory) return
  keepsFreedMemory = true
  native.keepFreedMemory()
}
