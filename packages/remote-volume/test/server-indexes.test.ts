import { setImmediate as turn } from 'node:timers/promises'
import { expect, it } from 'vitest'
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
