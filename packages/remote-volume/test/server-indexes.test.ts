import { setImmediate as turn } from 'node:timers/promises'
import { expect, it, vi } from 'vitest'
import { eventually } from '../../../test/eventually.js'
import { VolumeServer } from '../src/servers/volume-server.js'
import { SlabTable } from '../src/slabs/slab-table.js'
import { ServerIndexes } from '../src/volume/server-indexes.js'
import { makeEngine } from './helpers/engine.js'
import { MIB } from './helpers/swap-servers.js'

const URIS = ['iwarp://127.0.0.1:1']
const REMOTE = { id: 1, remoteKey: 7, address: BigInt(MIB), length: MIB }

it('an index is nobody’s when no slab is at the one that had it, and not before', async () => {
  await using engine = makeEngine({ size: MIB, slabSize: MIB })
  engine.mapSlab(0, { server: 0, remoteKey: REMOTE.remoteKey, address: REMOTE.address })
  // Before control has heard of the failure the index stays.
  const told = new Promise<void>((resolve) => engine.on('serverFailed', () => resolve()))
  engine.failServer(0)
  await told
  const first = VolumeServer.gone(0, URIS, 'it failed', undefined)
  const servers = [first, new VolumeServer(1, URIS, undefined)]
  const table = new SlabTable(engine, 1)
  table.adopt(0, [{ server: first, remote: REMOTE, live: true }])
  const kept: (readonly VolumeServer[])[] = []
  const said: string[] = []
  const indexes = new ServerIndexes({
    engine,
    table,
    servers,
    lanes: [],
    keep: (list) => kept.push(list),
    failed: (reason) => said.push(reason),
  })
  indexes.release()
  await turn()
  expect([kept, servers[0]]).toEqual([[], first])
  table.dropServer(first)
  indexes.release()
  await eventually(() => engine.failedServers().length === 0)
  expect(servers[0]?.isVacant).toBe(true)
  expect(kept).toHaveLength(1)
  expect(kept[0]?.map(({ isVacant }) => isVacant)).toEqual([true, false])
  expect(said).toEqual([])
  await indexes.close()
})

it('an index whose release was begun and could not be ended keeps no other one', async () => {
  await using engine = makeEngine({ size: MIB, slabSize: MIB })
  const gone = (index: number) => VolumeServer.gone(index, URIS, 'it failed', undefined)
  const [first, second, again] = [gone(0), gone(1), gone(0)]
  const servers = [first, second, new VolumeServer(2, URIS, undefined)]
  let told = 0
  engine.on('serverFailed', () => told++)
  for (const index of [1, 0]) engine.failServer(index)
  await eventually(() => told === 2)
  const said: string[] = []
  const indexes = new ServerIndexes({
    engine,
    table: new SlabTable(engine, 1),
    servers,
    lanes: [],
    keep: () => {},
    failed: (reason) => said.push(reason),
  })
  // Of the second one.
  vi.spyOn(engine, 'synchronize').mockResolvedValueOnce().mockRejectedValueOnce(new Error('it took too long'))
  indexes.release()
  await eventually(() => said.length === 1)
  expect(said[0]).toMatch(/stays in use: it took too long$/)
  expect(engine.failedServers()).toEqual([1])
  servers[0] = again
  engine.failServer(0)
  await eventually(() => told === 3)
  indexes.release()
  await eventually(() => engine.failedServers().length === 0)
  expect(said).toHaveLength(1)
  await indexes.close()
})
