import { types } from 'node:util'
import { UsageError } from './errors.js'

/**
 * @internal a copy of `value`, which may be of another realm (vm, jest), and lie in shared or resizable memory:
 * native code sees bytes that stay where they are, and as they are
 * @throws UsageError naming what is no Uint8Array
 */
export function copyOfBytes(name: string, value: Uint8Array): Uint8Array<ArrayBuffer> {
  if (!types.isUint8Array(value)) throw new UsageError(`${name} must be a Uint8Array`)
  return new Uint8Array(value)
}

/**
 * The part of an ArrayBuffer, of whatever realm, that a device can be told of.
 * @param memory an ArrayBuffer, or a view of the part
 * @throws UsageError for what is neither, for a SharedArrayBuffer, and for a resizable one, of whatever length
 */
export function registrable(
  memory: ArrayBuffer | ArrayBufferView<ArrayBuffer>,
): ArrayBufferView<ArrayBuffer> {
  const buffer: unknown = ArrayBuffer.isView(memory) ? memory.buffer : memory
  if (!types.isArrayBuffer(buffer))
    throw new UsageError('only an ArrayBuffer or a view of one can be registered')
  if ((buffer as { resizable?: boolean }).resizable)
    throw new UsageError('a resizable ArrayBuffer cannot be registered: its memory may go')
  return ArrayBuffer.isView(memory) ? memory : new Uint8Array(memory)
}

/** @internal `value`, if it is a whole number from `least` to `most` */
export function integerInRange(name: string, value: number, least = 0, most = 0xffffffff): number {
  if (!Number.isSafeInteger(value) || value < least || value > most)
    throw new UsageError(`${name} must be a whole number from ${least} to ${most}, not ${value}`)
  return value
}

/** @internal `value`, if it has at most 64 bits and no sign */
export function word(name: string, value: bigint): bigint {
  if (value < 0n || value >= 2n ** 64n)
    throw new UsageError(`${name} has 64 bits without a sign, not ${value}`)
  return value
}
