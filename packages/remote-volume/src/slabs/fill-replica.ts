import type { RemoteSlab } from '@rdmakit/swap-server'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'
import type { SlabReplica, SlabTable } from './slab-table.js'

/** Somewhere to put a slab. */
export interface Place {
  readonly server: VolumeServer
  readonly remote: RemoteSlab
}

/** Adds a replica of `slab` and fills it. When that fails, its place is given back. */
export async function fillReplica(
  engine: VolumeEngine,
  table: SlabTable,
  slab: number,
  place: Place,
): Promise<void> {
  const { server, remote } = place
  let replica: SlabReplica | undefined
  try {
    replica = table.add(slab, place)
    await engine.refill(slab, server.index)
    replica.live = true
  } catch (failure) {
    if (replica !== undefined) table.drop(slab, replica)
    if (server.failure === undefined && (failure as NodeJS.ErrnoException).code !== 'ECANCELED') {
      // No write may arrive there after it goes to another client.
      await engine.synchronize()
      await server.giveBack(remote)
    }
    throw failure
  }
}
