import { type MemoryRegion, UsageError } from '@rdmakit/verbs'

/**
 * The bytes of a region, which JavaScript can see.
 * @throws UsageError for one over a part of an ArrayBuffer: `buffer` is then all of it, and does not say where
 *   the region begins; and for memory of another device
 */
export function memoryOf(region: MemoryRegion): Uint8Array<ArrayBuffer> {
  const bytes = region.mapped ? new Uint8Array(region.buffer) : undefined
  if (bytes?.length !== region.length)
    throw new UsageError(
      `${region.description} is not a whole ArrayBuffer: take one of allocate(), or register all of the buffer`,
    )
  return bytes
}
