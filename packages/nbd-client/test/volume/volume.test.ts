import type { ServerFailure } from '@rdmakit/remote-volume'
import { describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { ADDRESSES, serve, socketAddress } from '../../../remote-volume/test/helpers/swap-servers.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import type { Volume, VolumeOptions } from '../../src/engine/block-volume.js'
import { Client, MIB, READ, setup, WRITE } from '../helpers/fixture.js'
import { openVolume } from '../helpers/volumes.js'

const open = (uris: readonly string[], options: Partial<VolumeOptions> = {}) =>
  openVolume(uris, { size: 4 * MIB, replicas: 2, ...options })

/** The server with most of the volume: chance may give another one nothing. */
function fullest(volume: Volume): number {
  const held = volume.servers.map(({ slabs }) => slabs)
  return held.indexOf(Math.max(...held))
}

describe('a volume with two replicas', () => {
  it('has every slab on two servers, and spare slabs ahead of use', async () => {
    const made = [await serve(8), await serve(8), await serve(8)]
    await using volume = await open(made.map(({ uri }) => uri))
    expect(volume.slabs).toEqual({ mapped: 4, degraded: 0, refilling: 0, away: 0, backup: 0, lost: 0 })
    expect(volume.servers.reduce((sum, { slabs }) => sum + slabs, 0)).toBe(8)
    await eventually(() => volume.servers.every(({ spares }) => spares === 1))
    expect(made.reduce((sum, { server }) => sum + server.store.free, 0)).toBe(24 - 8 - 3)
  })

  it('takes no spares that there is no room for', async () => {
    const [first, second] = [await serve(4), await serve(4)]
    await using volume = await open([first.uri, second.uri])
    expect(volume.servers.map(({ spares, room }) => [spares, room])).toEqual([
      [0, 0],
      [0, 0],
    ])
  })

  it('is repaired on other servers when one ends, and tells of it once', async () => {
    const made = [await serve(8), await serve(8), await serve(8)]
    await using volume = await open(made.map(({ uri }) => uri))
    const failures: ServerFailure[] = []
    volume.onServerFailure((failure) => failures.push(failure))
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let at = 0; at < 4 * MIB; at += MIB / 2)
      await client.request(WRITE, at, MIB / 2, Buffer.alloc(MIB / 2, 1 + at / MIB))
    const gone = fullest(volume)
    const held = volume.servers[gone]?.slabs ?? 0
    await made[gone]?.server.close()
    await eventually(() => failures.length > 0)
    expect(failures[0]).toMatchObject({ degraded: held * MIB, lost: 0 })
    await eventually(() => volume.slabs.mapped === 4)
    await made[(gone + 1) % 3]?.server.close()
    for (let at = 0; at < 4 * MIB; at += MIB / 2) {
      const { error, data } = (await client.request(READ, at, MIB / 2)) ?? {}
      expect(error).toBe(0)
      expect(data?.every((byte) => byte === Math.floor(1 + at / MIB))).toBe(true)
    }
    expect(failures.length).toBeLessThanOrEqual(2)
    client.close()
  })

  it('takes a server back that answers again under its address', async () => {
    const [first, second] = [await serve(8), await serve(8)]
    await using volume = await open([first.uri, second.uri])
    await first.server.close()
    await eventually(() => volume.slabs.degraded === 4)
    await serve(8, first.uri)
    await eventually(() => volume.slabs.mapped === 4)
    expect(volume.servers.map(({ index, failure }) => [index, failure === undefined])).toEqual([
      [0, false],
      [1, true],
      [2, true],
    ])
  })

  it('takes a server back that is reached over another device at its first address by then', async () => {
    const { server: before, uri: elsewhere } = await serve(8, ADDRESSES.iwarp())
    await before.close()
    const [first, second] = [await serve(8), await serve(8)]
    await using volume = await open([], { servers: [[elsewhere, first.uri], [second.uri]] })
    await first.server.close()
    await eventually(() => volume.slabs.degraded === 4)
    const { server } = await serve(8, elsewhere)
    await server.listen(first.uri)
    await eventually(() => volume.slabs.mapped === 4)
    expect(volume.servers.at(-1)).toMatchObject({ failure: undefined, uri: first.uri })
  })

  it('closes in the middle of a refill', async () => {
    const made = [await serve(8), await serve(8), await serve(8)]
    const volume = await open(
      made.map(({ uri }) => uri),
      { engine: { refillRate: MIB / 4 } },
    )
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let at = 0; at < 4 * MIB; at += MIB) await client.request(WRITE, at, MIB, Buffer.alloc(MIB, 7))
    await made[fullest(volume)]?.server.close()
    await eventually(
      () => volume.slabs.refilling === 1 && (volume.engine.statistics().refill?.pagesDone ?? 0) > 0,
    )
    await volume.close()
    await Promise.all([volume.close(), volume.close()])
    client.close()
    await expect(volume.engine.synchronize()).rejects.toMatchObject({ code: 'ECANCELED' })
  })
})

describe('what a volume refuses', () => {
  it('fewer servers than replicas', async () => {
    await expect(open([(await serve(8)).uri])).rejects.toThrow(/2 replicas of each slab need 2 servers/)
  })

  it('one server under two names', async () => {
    const { server, uri } = await serve(16)
    const other = await server.listen(socketAddress())
    await expect(open([uri, other])).rejects.toThrow(/lead to the same server/)
  })

  it('servers that hold enough together but not on different ones', async () => {
    const [large, small] = [await serve(16), await serve(3)]
    await expect(open([large.uri, small.uri])).rejects.toThrow(/2 replicas on different servers/)
    await eventually(() => large.server.store.free === 16 && large.server.sessions === 0)
  })
})

describe('an engine’s replicas', () => {
  const place = { server: 0, remoteKey: 1, address: 0n }

  it('are on different servers, three at most, and not on one that has failed', async () => {
    await using engine = new BlockEngine({ size: MIB, slabSize: MIB })
    expect(() => engine.mapSlab(0, place, place)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    engine.mapSlab(0, place)
    expect(() => engine.addReplica(0, place)).toThrow(expect.objectContaining({ code: 'EEXIST' }))
    engine.failServer(3)
    expect(() => engine.addReplica(0, { ...place, server: 3 })).toThrow(
      expect.objectContaining({ code: 'EHOSTDOWN' }),
    )
    engine.addReplica(0, { ...place, server: 1 })
    engine.addReplica(0, { ...place, server: 2 })
    expect(() => engine.addReplica(0, { ...place, server: 4 })).toThrow(
      expect.objectContaining({ code: 'ENOSPC' }),
    )
    expect(engine.dropReplica(0, 1)).toEqual({ wasLive: false, liveLeft: 1 })
    expect(() => engine.dropReplica(0, 1)).toThrow(expect.objectContaining({ code: 'ENOENT' }))
    // A healthy server's is retired first, and the last one is not.
    const refused = expect.objectContaining({ code: 'EBUSY' })
    expect(() => engine.dropReplica(0, 0)).toThrow(refused)
    expect(() => engine.retireReplica(0, 0)).toThrow(refused)
    expect(() => engine.retireReplica(0, 2)).toThrow(expect.objectContaining({ code: 'ENOENT' }))
    engine.failServer(0)
    expect(engine.dropReplica(0, 0)).toEqual({ wasLive: true, liveLeft: 0 })
    expect(() => engine.addReplica(0, { ...place, server: 4 })).toThrow(
      expect.objectContaining({ code: 'ENODATA' }),
    )
  })

  it('is retired before it is dropped, and stays where all others have failed', async () => {
    await using engine = new BlockEngine({ size: 2 * MIB, slabSize: MIB })
    const at = (server: number) => ({ ...place, server })
    for (const slab of [0, 1]) {
      engine.mapSlab(slab, at(0), at(1))
      engine.retireReplica(slab, 0)
      expect(engine.lookUpSlab(slab)).toEqual([
        { ...at(0), live: false, leaving: true },
        { ...at(1), live: true, leaving: false },
      ])
    }
    expect(engine.dropReplica(0, 0)).toEqual({ wasLive: true, liveLeft: 1 })
    engine.failServer(1)
    expect(() => engine.dropReplica(1, 0)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
    expect(engine.dropReplica(1, 1)).toEqual({ wasLive: true, liveLeft: 1 })
    expect(engine.lookUpSlab(1)).toEqual([{ ...at(0), live: true, leaving: false }])
  })

  it('is not dropped for having been retired when it has failed as the last one', async () => {
    await using engine = new BlockEngine({ size: MIB, slabSize: MIB })
    const at = (server: number) => ({ ...place, server })
    engine.mapSlab(0, at(0), at(1))
    engine.retireReplica(0, 0)
    for (const server of [1, 0]) engine.failServer(server)
    expect(() => engine.dropRetired(0, 0)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
    expect(engine.dropReplica(0, 1)).toEqual({ wasLive: true, liveLeft: 1 })
    expect(engine.dropReplica(0, 0)).toEqual({ wasLive: true, liveLeft: 0 })
  })

  it('are filled by a refill lane only', async () => {
    await using engine = new BlockEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place)
    await expect(engine.refill(0, 1)).rejects.toMatchObject({ code: 'ENOTCONN' })
    await expect(engine.refill(9, 1)).rejects.toMatchObject({ code: 'EINVAL' })
  })
})

describe('synchronize', () => {
  it('resolves with lanes and without, many times at once', async () => {
    await using made = await setup()
    await made.engine.synchronize()
    await made.addLane()
    await made.addLane()
    const all = await Promise.all(Array.from({ length: 20 }, () => made.engine.synchronize()))
    expect(all).toEqual(all.map(() => undefined))
    expect(made.engine.statistics().lanes).toHaveLength(2)
  })

  it('rejects when the engine closes', async () => {
    const made = await setup()
    await made[Symbol.asyncDispose]()
    await expect(made.engine.synchronize()).rejects.toMatchObject({ code: 'ECANCELED' })
  })
})
