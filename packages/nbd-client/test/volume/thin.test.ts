import { VolumeServer } from '@rdmakit/remote-volume/internal'
import { deferred } from '@rdmakit/verbs/internal'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import type { Volume, VolumeOptions } from '../../src/engine/block-volume.js'
import { Client, MIB, READ, TRIM, WRITE } from '../helpers/fixture.js'
import { openVolume } from '../helpers/volumes.js'

const open = (uris: readonly string[], options: Partial<VolumeOptions> = {}) =>
  openVolume(uris, { size: 64 * MIB, thin: true, spares: 0, ...options })

const write = async (client: Client, slab: number, value: number, length = 8192) =>
  (await client.request(WRITE, slab * MIB, length, Buffer.alloc(length, value)))?.error

/** @returns what each byte of the slab's first 8 KiB is; undefined: they differ, or an error */
async function valueAt(client: Client, slab: number): Promise<number | undefined> {
  const { error, data } = (await client.request(READ, slab * MIB, 8192)) ?? {}
  if (error !== 0 || data?.some((byte) => byte !== data[0])) return undefined
  return data?.[0]
}

const mapped = (volume: Volume) => volume.slabs.mapped

describe('a thin volume', () => {
  it('may be larger than its servers, and has the places of 8 slabs ready', async () => {
    const { server, uri } = await serve(16)
    await using volume = await open([uri])
    await eventually(() => volume.thin?.spares === 8)
    expect(server.store.free).toBe(8)
    expect(volume.slabs).toEqual({ mapped: 0, degraded: 0, refilling: 0, away: 0, backup: 0, lost: 0 })
    expect(volume.unmapped).toBe(64)
  })

  it('takes memory for what is written, and reads zeros elsewhere', async () => {
    const { server, uri } = await serve(32)
    await using volume = await open([uri])
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let slab = 0; slab < 20; slab++) expect(await write(client, 3 * slab, slab + 1)).toBe(0)
    for (let slab = 0; slab < 60; slab++)
      expect(await valueAt(client, slab)).toBe(slab % 3 === 0 ? slab / 3 + 1 : 0)
    await eventually(() => mapped(volume) === 20 && volume.thin?.spares === 8)
    expect(server.store.free).toBe(32 - 28)
    expect(volume.engine.statistics()).toMatchObject({ mappedSlabs: 20, sparePlaces: 8, writtenPages: 40 })
    client.close()
  })

  it('gives memory back when a slab is discarded, and takes it again', async () => {
    const { server, uri } = await serve(12)
    await using volume = await open([uri])
    const client = new Client(volume.engine.attachSocketpair(0))
    const rounds = effort(2)
    for (let round = 1; round <= rounds; round++) {
      for (let slab = 0; slab < 12; slab++) expect(await write(client, slab, round)).toBe(0)
      for (let slab = 0; slab < 12; slab++) expect(await valueAt(client, slab)).toBe(round)
      await eventually(() => mapped(volume) === 12)
      // A page is left in one of them.
      expect((await client.request(TRIM, 4096, 12 * MIB - 4096))?.error).toBe(0)
      await eventually(() => mapped(volume) === 1 && volume.thin?.spares === 8)
      expect(server.store.free).toBe(12 - 9)
      expect((await client.request(TRIM, 0, 4096))?.error).toBe(0)
      await eventually(() => mapped(volume) === 0)
    }
    expect(volume.thin?.given).toBe(12 * rounds)
    client.close()
  })

  it('takes no place at a server that failed while the other replica was being allocated', async () => {
    const made = [await serve(16), await serve(16)]
    const take = VolumeServer.prototype.take
    const [reached, go] = [deferred<VolumeServer>(), deferred<void>()]
    let first: VolumeServer | undefined
    // The first place that it wants: one server answers at once, the other one when the first has failed and is back.
    vi.spyOn(VolumeServer.prototype, 'take').mockImplementation(async function (this: VolumeServer) {
      if (first === undefined) first = this
      else if (this !== first) {
        reached.resolve(first)
        await go.promise
      }
      return await take.call(this)
    })
    onTestFinished(() => void vi.restoreAllMocks())
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2 },
    )
    const { index } = await reached.promise
    volume.engine.failServer(index, 'the test said so')
    // Its index may be another server's now.
    await eventually(
      () => volume.servers[index]?.isVacant === true && volume.engine.failedServers().length === 0,
    )
    const added = vi.spyOn(volume.engine, 'addSpare')
    go.resolve()
    await eventually(() => volume.thin?.spares === 8)
    const used = added.mock.calls.flatMap(([, ...replicas]) => replicas.map(({ server }) => server))
    expect(used).toHaveLength(16)
    expect(used).not.toContain(index)
  })

  it('takes what was discarded for a WRITE that follows at once, before it answers ENOSPC', async () => {
    const { uri } = await serve(4)
    await using volume = await open([uri])
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let slab = 0; slab < 4; slab++) expect(await write(client, slab, 1)).toBe(0)
    for (let slab = 4; slab < 24; slab++) {
      expect((await client.request(TRIM, (slab - 4) * MIB, MIB))?.error).toBe(0)
      expect(await write(client, slab, 2)).toBe(0)
    }
    expect(volume.thin?.given).toBe(20)
    client.close()
  })

  it('answers ENOSPC when no server has memory, says so once, and goes on when there is some', async () => {
    const { uri } = await serve(4)
    const told: string[] = []
    await using volume = await open([uri], { progress: (step) => told.push(step) })
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let slab = 0; slab < 4; slab++) expect(await write(client, slab, 1)).toBe(0)
    expect(await write(client, 4, 1)).toBe(28)
    expect(await write(client, 5, 1)).toBe(28)
    expect(await write(client, 3, 2)).toBe(0)
    expect(await valueAt(client, 4)).toBe(0)
    expect(
      told.filter((step) => /no memory left.*60 MiB of the volume fail with ENOSPC/.test(step)),
    ).toHaveLength(1)
    expect((await client.request(TRIM, 0, MIB))?.error).toBe(0)
    await eventually(() => told.some((step) => /have memory again/.test(step)) || volume.thin?.spares === 1)
    expect(await write(client, 4, 3)).toBe(0)
    expect(await valueAt(client, 4)).toBe(3)
    client.close()
  })

  it('places replicas on different servers, and repairs those that a failure took', async () => {
    const made = [await serve(24), await serve(24), await serve(24)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2 },
    )
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let slab = 0; slab < 8; slab++) expect(await write(client, slab, slab + 1)).toBe(0)
    await made[0]?.server.close()
    // First writes go on while the places at the dead server are replaced.
    for (let slab = 8; slab < 16; slab++) expect(await write(client, slab, slab + 1)).toBe(0)
    await eventually(() => mapped(volume) === 16)
    await made[1]?.server.close()
    for (let slab = 0; slab < 16; slab++) expect(await valueAt(client, slab)).toBe(slab + 1)
    expect(await valueAt(client, 16)).toBe(0)
    client.close()
  })

  it('gives places that hold nothing first when a server wants its memory back', async () => {
    const { server, uri } = await serve(12)
    const other = await serve(12)
    await using volume = await open([uri, other.uri], { size: 4 * MIB, replicas: 2 })
    const client = new Client(volume.engine.attachSocketpair(0))
    expect(await write(client, 0, 1)).toBe(0)
    await eventually(() => volume.thin?.spares === 3 && mapped(volume) === 1)
    const outcome = await server.lending.hold({ bytes: 3 * MIB, duration: 60_000, patience: 50_000 })
    expect(outcome).toMatchObject({ asked: 3, freed: 3 })
    expect(volume.migration.moved).toBe(0)
    expect(await valueAt(client, 0)).toBe(1)
    client.close()
  })

  it('is refused only without a server for each replica, or without any memory', async () => {
    const { uri } = await serve(1)
    await using volume = await open([uri], { size: 2 * MIB })
    // It takes memory ahead of use, but only after it is open.
    await eventually(() => volume.thin?.spares === 1)
    await expect(open([uri])).rejects.toThrow(/server too small/)
    expect(volume.unmapped).toBe(2)
  })
})
