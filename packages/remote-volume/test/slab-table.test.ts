// What control knows of a slab, when it hears late that a lane has given the slab a place.
import { describe, expect, it } from 'vitest'
import { VolumeServer } from '../src/servers/volume-server.js'
import { SlabTable } from '../src/slabs/slab-table.js'
import { makeEngine } from './helpers/engine.js'
import { MIB } from './helpers/swap-servers.js'

/** A slab with a replica at each of two servers, which control has just heard of. */
function twoReplicas() {
  const engine = makeEngine({ size: MIB, slabSize: MIB })
  const table = new SlabTable(engine, 2)
  const servers = [0, 1].map(
    (index) => new VolumeServer(index, [`iwarp://127.0.0.1:${1 + index}`], undefined),
  )
  const places = servers.map((server) => ({
    server,
    remote: { id: 1, remoteKey: 7, address: BigInt(MIB), length: MIB },
  }))
  engine.mapSlab(0, ...places.map(({ server, remote }) => ({ server: server.index, ...remote })))
  table.adopt(
    0,
    places.map((place) => ({ ...place, live: true })),
  )
  /** In the order in which they fail. */
  const fail = (index: number, away: boolean) => {
    const server = servers[index] as VolumeServer
    engine.failServer(index)
    server.failure = 'the test said so'
    server.away = away
  }
  const holders = () => (engine.lookUpSlab(0) ?? []).map(({ server }) => server)
  return { engine, table, fail, holders, [Symbol.asyncDispose]: () => engine[Symbol.asyncDispose]() }
}

describe('a slab that control hears of when its servers have failed', () => {
  it.each([
    [0, 1],
    [1, 0],
  ])(
    'keeps the replica of the last one, which is waited for, and no other: first %i, then %i',
    async (first, last) => {
      await using made = twoReplicas()
      made.fail(first, true)
      made.fail(last, true)
      expect(made.table.dropFailed(0, made.engine.failedServers())).toBe(true)
      expect(made.holders()).toEqual([last])
      expect(made.table.state(0)).toBe('away')
    },
  )

  it('keeps none of servers that are not waited for', async () => {
    await using made = twoReplicas()
    made.fail(0, false)
    made.fail(1, false)
    expect(made.table.dropFailed(0, made.engine.failedServers())).toBe(true)
    expect(made.holders()).toEqual([])
    expect(made.table.state(0)).toBe('lost')
  })

  it('has the replica of one that has not failed', async () => {
    await using made = twoReplicas()
    made.fail(1, true)
    expect(made.table.dropFailed(0, made.engine.failedServers())).toBe(true)
    expect(made.holders()).toEqual([0])
    expect(made.table.state(0)).toBe('degraded')
  })
})
