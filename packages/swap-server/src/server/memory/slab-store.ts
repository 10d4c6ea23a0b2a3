import { type MemoryRegion, type ProtectionDomain, UsageError } from '@rdmakit/verbs'

export interface Slab {
  readonly id: number
  readonly region: MemoryRegion
}

/** There are fewer slabs left than were asked for. */
export class OutOfSlabsError extends Error {
  readonly code = 'ENOSPC'
}

/**
 * The server's memory, counted in slabs. A slab is fresh zeroed memory, registered in its tenant's
 * protection domain when it is allocated, and unmapped when it is freed: what one tenant wrote never
 * reaches another, and no key ever opens two tenants' slabs.
 */
export class SlabStore {
  readonly slabSize: number
  readonly total: number
  #taken = 0
  #lastId = 0

  constructor(memory: number, slabSize: number) {
    if (slabSize < 2 ** 20 || slabSize > 2 ** 32 || !Number.isInteger(Math.log2(slabSize)))
      throw new UsageError(`--slab-size must be a power of two from 1M to 4G, not ${slabSize} bytes`)
    if (!(memory >= slabSize))
      throw new UsageError(`--memory of ${memory} bytes does not hold one slab of ${slabSize} bytes`)
    this.slabSize = slabSize
    this.total = Math.floor(memory / slabSize)
  }

  get free(): number {
    return this.total - this.#taken
  }

  /**
   * Allocates all of `count` slabs or none.
   * @throws OutOfSlabsError; VerbsError ENOMEM when the machine has less memory than was promised
   */
  async allocate(protectionDomain: ProtectionDomain, count: number): Promise<Slab[]> {
    if (count > this.free)
      throw new OutOfSlabsError(
        `${count} slabs of ${this.slabSize} bytes were requested, but ${this.free} are free`,
      )
    this.#taken += count
    const slabs: Slab[] = []
    try {
      // One by one: pinning memory is the kernel's work on one lock, and peaks are smaller.
      for (let i = 0; i < count; i++) {
        const region = await protectionDomain.allocateMemoryRegion(this.slabSize, [
          'remote-read',
          'remote-write',
        ])
        slabs.push({ id: ++this.#lastId, region })
      }
      return slabs
    } catch (failure) {
      for (const { region } of slabs) region.close()
      this.#taken -= count
      throw failure
    }
  }

  /**
   * Takes slabs back. Their keys are dead and their memory goes to the system: usually when this returns,
   * else when the device has finished with them ({@link MemoryRegion.destroyed}). No other client gets that
   * memory before.
   */
  release(slabs: Iterable<Slab>): void {
    for (const { region } of slabs) {
      region.close()
      this.#taken--
    }
  }
}
