import { formatSize } from '@rdmakit/operator-kit'
import { Migration } from '../slabs/migration.js'
import { Repair } from '../slabs/repair.js'
import { SerialQueue } from '../slabs/serial-queue.js'
import { SlabTable } from '../slabs/slab-table.js'
import { ThinSlabs } from '../slabs/thin-slabs.js'
import type { VolumeState } from './volume-state.js'

/**
 * Operations of control on the slabs of a volume while lanes serve it: repairs, moves, takes and gives
 * memory.
 */
export class SlabWork {
  readonly table: SlabTable
  readonly repair: Repair
  readonly migration: Migration
  /** undefined: not thin */
  readonly thin: ThinSlabs | undefined

  /** @param waits servers are waited for, and none could say whether it has memory */
  constructor(state: VolumeState, waits: () => boolean) {
    const { engine, servers, options, progress, replicas } = state
    this.table = new SlabTable(engine, replicas, () => state.backedUp)
    const shared = { engine, table: this.table, servers, queue: new SerialQueue() }
    const size = (slabs: number) => formatSize(slabs * engine.slabSize)
    this.repair = new Repair({
      ...shared,
      spares: options.spares ?? (replicas > 1 || state.backedUp ? 1 : 0),
      repaired: (slabs) => progress(`${size(slabs)} of the volume repaired`),
      failed: (reason) => progress(`repair: ${reason}`),
    })
    this.thin = options.thin
      ? new ThinSlabs({
          ...shared,
          waits,
          degraded: () => this.repair.wake(),
          exhausted: (exhausted) =>
            progress(
              exhausted
                ? `the servers have no memory left: first writes to the other ${size(this.table.unmapped)} of the volume fail with ENOSPC`
                : 'the servers have memory again',
            ),
          failed: (reason) => progress(`allocating memory in advance: ${reason}`),
        })
      : undefined
    this.migration = new Migration({
      ...shared,
      thin: this.thin,
      degraded: () => this.repair.wake(),
      moving: ({ session }, slabs) =>
        progress(`${session.uri} needs its memory back: moving ${size(slabs)} to other servers`),
      moved: ({ session }, slabs) => progress(`${size(slabs)} moved away from ${session.uri}`),
      stuck: ({ session }, slabs) =>
        progress(`${size(slabs)} stay on ${session.uri}: other servers have no room`),
      failed: (reason) => progress(`moving slabs: ${reason}`),
    })
  }

  /** There may be something to do. */
  wake(): void {
    this.repair.wake()
    this.thin?.wake()
  }

  /** Resolves when nothing is done any more. */
  async close(): Promise<void> {
    await Promise.all([this.repair.close(), this.migration.close(), this.thin?.close()])
  }
}
