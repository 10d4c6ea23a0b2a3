import { types } from 'node:util'

/** Of regions that a device may write to. */
const written = new WeakSet<ArrayBufferLike>()

/** @internal from now on a device may write to it at any moment */
export function noteWritten(buffer: ArrayBufferLike): void {
  written.add(buffer)
}

/** @internal whether bytes may change there while JavaScript stands still: by a device, for a peer, or by another thread */
export function mayChange(buffer: ArrayBufferLike): boolean {
  return !types.isArrayBuffer(buffer) || written.has(buffer)
}
