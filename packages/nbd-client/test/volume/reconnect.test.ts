import { rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import type { ServerFailure, VolumeServer } from '@rdmakit/remote-volume'
import { SwapServerSession } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { Wire } from '../../../../test/wire.js'
import { ADDRESSES, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { Volume } from '../../src/engine/block-volume.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'
import { openVolume } from '../helpers/volumes.js'

const SIZE = 4 * MIB

async function write(client: Client, byte: number): Promise<void> {
  const { error } = (await client.request(WRITE, 0, SIZE, Buffer.alloc(SIZE, byte))) ?? {}
  expect(error).toBe(0)
}

async function read(client: Client, byte: number): Promise<void> {
  const { error, data } = (await client.request(READ, 0, SIZE)) ?? {}
  expect(error).toBe(0)
  expect(data?.equals(Buffer.alloc(SIZE, byte))).toBe(true)
}

/** Tells each failure; and a volume that waits for servers. */
async function open(servers: number, options: Partial<Parameters<typeof openVolume>[1]> = {}) {
  const made = await Promise.all(Array.from({ length: servers }, () => serve(8)))
  const volume = await openVolume(
    made.map(({ uri }) => uri),
    { size: SIZE, replicas: servers, reconnect: 30_000, ...options },
  )
  const failures: ServerFailure[] = []
  volume.onServerFailure((failure) => failures.push(failure))
  return { made, volume, failures }
}

/** A volume that waits for its one server, which it reaches over a wire. */
async function openBehindWire(options: Partial<Parameters<typeof openVolume>[1]> = {}) {
  const { server, uri } = await serve(8, ADDRESSES.iwarp())
  const wire = await Wire.to(uri)
  onTestFinished(() => wire.close())
  const volume = await openVolume([wire.uri], { size: SIZE, reconnect: 600_000, ...options })
  const failures: ServerFailure[] = []
  volume.onServerFailure((failure) => failures.push(failure))
  return { server, uri, wire, volume, failures }
}

const up = (volume: Volume) => volume.servers.filter(({ failure }) => failure === undefined).length
/** Indexes that something names. */
const taken = (volume: Volume) => volume.servers.filter(({ isVacant }) => !isVacant).length
/** How often servers have joined, as they are counted in this process. */
const joins = (volume: Volume) => Math.max(...volume.servers.map(({ incarnation }) => incarnation))

describe('a volume whose servers all fail at once', () => {
  it.each([
    [0, 1],
    [1, 0],
  ])('goes on with the last of them: first %i, then %i', async (first, last) => {
    const { volume, failures } = await open(2)
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    // Before JavaScript hears of either.
    volume.engine.failServer(first, 'the test said so')
    volume.engine.failServer(last, 'the test said so')
    const reading = read(client, 1)
    expect(volume.engine.failedServers()).toEqual([first, last])
    await eventually(() => failures.length === 2)
    const of = (index: number) => failures.find(({ server }) => server.index === index)
    expect(of(first)).toMatchObject({ away: 0, lost: 0, degraded: SIZE })
    expect(of(last)).toMatchObject({ away: SIZE, lost: 0, degraded: 0 })
    expect(volume.lost).toBe(false)
    await reading
    await eventually(() => volume.slabs.mapped === 4 && up(volume) === 2)
    await write(client, 2)
    await read(client, 2)
    expect(volume.engine.statistics().lostPages).toBe(0)
    client.close()
  })

  it.each([1, 2])('uses the indexes of those that came back again, with %i replicas', async (replicas) => {
    const { volume } = await open(replicas)
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    const rounds = effort(replicas === 1 ? 4 : 2)
    for (let round = 1; round <= rounds; round++) {
      for (const { index, failure } of volume.servers)
        if (failure === undefined) volume.engine.failServer(index, 'the test said so')
      await read(client, 1)
      await eventually(() => taken(volume) === replicas && volume.slabs.mapped === 4)
      await write(client, 1)
    }
    expect(volume.servers.length).toBeLessThanOrEqual(2 * replicas + 1)
    expect(volume.engine.failedServers()).toEqual([])
    expect(volume.slabs).toMatchObject({ mapped: 4, away: 0, lost: 0 })
    client.close()
  })
})

describe('an address that leads to another server of the volume by now', () => {
  it('adds none: two replicas would be lost together', async () => {
    const said: string[] = []
    const { made, volume } = await open(2, { progress: (step) => void said.push(step) })
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    const [gone, other] = made as [(typeof made)[0], (typeof made)[0]]
    const [from, to] = [gone, other].map(({ uri }) => new URL(uri).pathname) as [string, string]
    await gone.server.close()
    await eventually(() => up(volume) === 1)
    symlinkSync(to, from)
    onTestFinished(() => rmSync(from, { force: true }))
    const line = `${gone.uri}: ${gone.uri} leads to the server at ${other.uri}, which takes part already; it is called again`
    await eventually(() => said.includes(line))
    expect(up(volume)).toBe(1)
    expect(volume.slabs.mapped).toBe(0)
    // Nor does it keep the other one out, which alone has all of it by now.
    const lone = volume.servers.find(({ failure }) => failure === undefined)?.index as number
    volume.engine.failServer(lone, 'the test said so')
    await read(client, 1)
    expect(volume.slabs).toMatchObject({ degraded: 4, away: 0, lost: 0 })
    rmSync(from)
    await serve(8, gone.uri)
    await eventually(() => up(volume) === 2 && volume.slabs.mapped === 4)
    await read(client, 1)
    client.close()
  })
})

describe('a server behind something that refuses for a while', () => {
  it('is waited for, and has what it had', async () => {
    const { server, wire, volume, failures } = await openBehindWire()
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    const resume = vi.spyOn(SwapServerSession, 'resume')
    onTestFinished(() => void vi.restoreAllMocks())
    await wire.refuse()
    const reading = read(client, 1)
    // One each half second: longer than a connection that is refused would be a verdict for a server of this host.
    await eventually(() => resume.mock.calls.length === 5)
    expect(failures).toMatchObject([{ away: SIZE, lost: 0 }])
    expect(server.lingeringSessions).toBe(1)
    await wire.reopen()
    await reading
    await eventually(() => up(volume) === 1)
    expect(volume.slabs).toMatchObject({ mapped: 4, lost: 0 })
    expect(failures).toHaveLength(1)
    client.close()
  })
})

describe('a server that is away', () => {
  it('is not waited for when it has said that it ends', async () => {
    const { made, volume, failures } = await open(1, { reconnect: 600_000 })
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    await made[0]?.server.close()
    await eventually(() => failures.length === 1)
    expect(failures).toMatchObject([
      { away: 0, lost: SIZE, reason: expect.stringMatching(/the server ends/) },
    ])
    client.close()
  })

  it('is given up at once when it knows the session no more, and tells what is lost', async () => {
    const { server, uri, wire, volume, failures } = await openBehindWire()
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    // It ends without a word, as one that is killed.
    await wire.refuse()
    await eventually(() => failures.length === 1)
    await server.close()
    await serve(8, uri)
    await wire.reopen()
    await eventually(() => failures.length === 2)
    expect(failures[0]).toMatchObject({ away: SIZE, lost: 0 })
    expect(failures[1]).toMatchObject({ away: 0, lost: SIZE })
    expect((await client.request(READ, 0, 4096))?.error).toBe(5)
    await eventually(() => volume.slabs.mapped === 4)
    await write(client, 2)
    await read(client, 2)
    client.close()
  })

  it('gives slabs back that nothing uses, and keeps what a thin volume has ready', async () => {
    for (const thin of [false, true]) {
      const { made, volume } = await open(1, { thin, spares: thin ? 0 : 2 })
      const [{ server } = { server: undefined }] = made
      const client = new Client(volume.engine.attachSocketpair(0))
      await client.request(WRITE, 0, MIB, Buffer.alloc(MIB, 1))
      // A thin volume has one written slab and places for the other three; otherwise all four and two spare ones.
      const free = thin ? 4 : 2
      await eventually(() => server?.store.free === free)
      volume.engine.failServer(0, 'the test said so')
      await eventually(() => up(volume) === 1)
      expect((await client.request(READ, 0, MIB))?.data?.equals(Buffer.alloc(MIB, 1))).toBe(true)
      await eventually(() => server?.store.free === free)
      await write(client, 3)
      await read(client, 3)
      client.close()
      await volume.close()
      expect(server?.store.free).toBe(8)
    }
  })

  it('may have memory for a first WRITE, which is not told that there is none', async () => {
    const { wire, volume, failures } = await openBehindWire({
      thin: true,
      spares: 0,
      engine: { operationTimeout: 600_000 },
    })
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    expect((await client.request(WRITE, 0, 4096, Buffer.alloc(4096, 1)))?.error).toBe(0)
    const resume = vi.spyOn(SwapServerSession, 'resume')
    onTestFinished(() => void vi.restoreAllMocks())
    await wire.refuse()
    await eventually(() => failures.length === 1)
    const writing = client.request(WRITE, MIB, 4096, Buffer.alloc(4096, 2))
    // Control has looked for memory since, and found none.
    await eventually(() => volume.thin?.spares === 0 && resume.mock.calls.length === 3)
    await wire.reopen()
    expect((await writing)?.error).toBe(0)
    expect((await client.request(READ, MIB, 4096))?.data).toEqual(Buffer.alloc(4096, 2))
    client.close()
  })

  it('has taken nothing along of a thin volume that holds nothing, which goes on when it is back', async () => {
    const { wire, volume, failures } = await openBehindWire({ thin: true, spares: 0 })
    await using _volume = volume
    const client = new Client(volume.engine.attachSocketpair(0))
    const lost: boolean[] = []
    // As the programs do, which end when all is lost.
    volume.onServerFailure(() => lost.push(volume.lost))
    await wire.refuse()
    await eventually(() => failures.length === 1)
    expect((await client.request(READ, 0, 4096))?.data).toEqual(Buffer.alloc(4096))
    await wire.reopen()
    await eventually(() => up(volume) === 1)
    await write(client, 1)
    await read(client, 1)
    expect(lost).toEqual([false])
    client.close()
  })

  it('is waited for by nobody when the volume closes', async () => {
    const { made, volume, failures } = await open(1)
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    await made[0]?.server.close()
    await eventually(() => failures.length > 0)
    const reading = client.request(READ, 0, 4096)
    await volume.close(200)
    expect((await reading)?.error).not.toBe(0)
    client.close()
  })
})

describe('a link that breaks again while its server is taken back', () => {
  it('takes nothing of the volume along', async () => {
    const { server, uri } = await serve(8, ADDRESSES.iwarp())
    const wire = await Wire.to(uri)
    onTestFinished(() => wire.close())
    await using volume = await openVolume([wire.uri], {
      size: SIZE,
      reconnect: 30_000,
    })
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, 1)
    for (let round = effort(3); round > 0; round--) {
      const before = joins(volume)
      const called = wire.next()
      wire.break()
      const control = await called
      // Lanes are being connected: the session exists and is not watched yet.
      await wire.next()
      control.destroy()
      await eventually(() => joins(volume) > before + 1 && up(volume) === 1)
      await read(client, 1)
      await write(client, 1)
    }
    expect(volume.slabs).toMatchObject({ mapped: 4, away: 0, lost: 0 })
    expect(volume.engine.statistics().lostPages).toBe(0)
    expect(server.sessions).toBe(1)
    client.close()
  })
})

it('a take-over says nothing of earlier incarnations of servers that are up', async () => {
  const { uri } = await serve(8)
  const folder = temporaryFolder()
  const engine = { pageMap: join(folder, 'pages.map'), slabMap: join(folder, 'slabs.map') }
  const options = { size: SIZE, reconnect: 30_000, linger: 60_000, engine }
  // The index of the first stays taken, as that of a process that dies before it could write it down.
  const keep = (list: readonly VolumeServer[]) => {
    if (list[0]?.isVacant) throw new Error('no space is left')
  }
  const before = await openVolume([uri], { ...options, keep })
  const [first] = before.servers
  before.engine.failServer(0, 'the test said so')
  await eventually(() => before.servers.length === 2 && up(before) === 1)
  const servers = [first, before.servers[1]].map((server) => {
    if (server?.identity === undefined) throw new Error('it has no session')
    return { index: server.index, uris: server.uris, identity: server.identity, linger: 60_000 }
  })
  await before.leave()
  const said: string[] = []
  const { volume } = await Volume.takeOver(
    { ...options, servers: [[uri]], lanes: 1, progress: (step) => said.push(step) },
    { size: SIZE, slabSize: MIB, replicas: 1, servers },
  )
  await using _volume = volume
  expect(volume.slabs).toMatchObject({ mapped: 4, lost: 0 })
  expect(said.filter((step) => step.includes('lost'))).toEqual([])
})
