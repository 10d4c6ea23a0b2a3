// A server asks for all of a large volume: what control does for that is in proportion to the number of slabs, for it
// answers heartbeats meanwhile. A tenth of a second.
import type { SwapServerSession } from '@rdmakit/swap-server'
import { expect, it, vi } from 'vitest'
import { eventually } from '../../../test/eventually.js'
import { VolumeServer } from '../src/servers/volume-server.js'
import { Migration } from '../src/slabs/migration.js'
import { SerialQueue } from '../src/slabs/serial-queue.js'
import { SlabTable } from '../src/slabs/slab-table.js'
import { makeEngine } from './helpers/engine.js'
import { MIB } from './helpers/swap-servers.js'

const SLABS = 256

it('no list of all slabs is made for each one that is asked for', async () => {
  await using engine = makeEngine({ size: SLABS * MIB, slabSize: MIB })
  const allocate = vi.fn(async () => {
    throw new Error('there is none after all')
  })
  const [asking, other] = [0, 1].map(
    (index) =>
      new VolumeServer(index, [`iwarp://127.0.0.1:${1 + index}`], {
        freeSlabs: SLABS,
        allocate,
      } as unknown as SwapServerSession),
  ) as [VolumeServer, VolumeServer]
  const table = new SlabTable(engine, 1)
  const ids = Array.from({ length: SLABS }, (_, slab) => 1 + slab)
  for (const id of ids)
    table.map(id - 1, [
      { server: asking, remote: { id, remoteKey: 7, address: BigInt(id * MIB), length: MIB } },
    ])
  const failed = vi.fn()
  const migration = new Migration({
    engine,
    table,
    servers: [asking, other],
    queue: new SerialQueue(),
    thin: undefined,
    degraded: () => {},
    moving: () => {},
    moved: () => {},
    stuck: () => {},
    failed,
  })
  const lists = vi.spyOn(table, 'heldBy')
  expect(await migration.handler(asking).reclaim(ids)).toEqual(ids)
  await eventually(() => failed.mock.calls.length === SLABS)
  expect(allocate).toHaveBeenCalledTimes(SLABS)
  expect(migration.waiting).toBe(SLABS)
  expect(lists.mock.calls.length).toBeLessThan(4)
  await migration.close()
})
