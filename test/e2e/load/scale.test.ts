// How large it may get: a volume of 1 TiB, 64 tenants on one server, 16 servers under one volume.
import { randomBytes } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Volume } from '@rdmakit/nbd-client'
import { SwapServer } from '@rdmakit/swap-server'
import { describe, expect, it } from 'vitest'
import { Client, MIB, READ, TRIM, WRITE } from '../../../packages/nbd-client/test/helpers/fixture.js'
import { effort } from '../../effort.js'
import {
  must,
  type Program,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

interface Status {
  slabs: { mapped: number; lost: number }
  thin: { unmapped: number; spares: number; given: number }
  statistics: { writtenPages: number }
}

/** Bytes of memory that the program has now, or at most had: `VmRSS`, `VmHWM`. */
function memoryOf({ process: { pid } }: Program, field: string): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]) * 1024
}

/** A second of /proc/PID/stat, see proc(5): sysconf(_SC_CLK_TCK), the same on every Linux that Node.js runs on. */
const TICKS = 100

/** Seconds that its threads have run. */
function processorSeconds({ process: { pid } }: Program): number {
  const [user, system] =
    readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ').slice(11, 13) ?? []
  return (Number(user) + Number(system)) / TICKS
}

const page = (value: number) => Buffer.alloc(4096, value)

describe('a thin volume of 1 TiB', () => {
  const PLACES = 64
  const GIB = 2 ** 30
  const at = (place: number) => place * 16 * GIB + place * 4096

  it('is attached in under 5 s of a processor and costs under 300 MiB, written and read all over', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '96M', '--slab-size', '1M'])
    await using _server = server
    const client = await startServe(uri, '1T', folder.path, ['--thin'])
    await using _client = client.program
    const seconds = processorSeconds(client.program)
    const touch = (command: (place: number) => string) =>
      must('qemu-io', [
        ...['-f', 'raw'],
        ...Array.from({ length: PLACES }, (_, place) => ['-c', command(place)]).flat(),
        client.uri,
      ])
    touch((place) => `write -P ${place + 1} ${at(place)} 64k`)
    const read = touch((place) => `read -P ${place + 1} ${at(place)} 64k`)
    const zeros = touch((place) => `read -P 0 ${at(place) + 2 ** 20} 64k`)
    expect(read + zeros).not.toMatch(/fail|error/i)
    const status = await statusIn<Status>(folder.path)
    expect(status.thin.unmapped).toBe(2 ** 20 - PLACES)
    expect(status).toMatchObject({
      slabs: { mapped: PLACES, lost: 0 },
      statistics: { writtenPages: PLACES * 16 },
    })
    const memory = memoryOf(client.program, 'VmHWM') / MIB
    console.log(
      `1 TiB: attached in ${seconds.toFixed(2)} s of a processor, at most ${memory.toFixed(0)} MiB of memory`,
    )
    // By a processor's time, not by the clock: what else the machine does is not the client's.
    expect(seconds).toBeLessThan(5)
    expect(memory).toBeLessThan(300)
    touch((place) => `discard ${at(place)} 64k`)
    const { thin } = await until(
      () => statusIn<Status>(folder.path),
      (now) => now.thin.given >= PLACES,
    )
    expect(thin.unmapped).toBe(2 ** 20)
  })
})

it('an export for 64 connections takes memory for those that work, and not 14 MiB for each', async () => {
  using folder = temporaryFolder()
  const { program: server, uri } = await startServer(['--memory', '64M', '--slab-size', '4M'])
  await using _server = server
  const client = await startServe(uri, '64M', folder.path, ['--connections', '64'])
  await using _client = client.program
  const said = must('qemu-io', ['-f', 'raw', '-c', 'write -P 1 0 16M', '-c', 'read -P 1 0 16M', client.uri])
  expect(said).not.toMatch(/fail|error/i)
  const memory = memoryOf(client.program, 'RssAnon') / MIB
  console.log(`64 connections, of which one works: ${memory.toFixed(0)} MiB of memory`)
  expect(memory).toBeLessThan(250)
})

describe('one server', () => {
  // Each takes 13 MiB of memory, and the time to touch it.
  const TENANTS = Math.min(64, effort(16))

  it(`lends memory to ${TENANTS} tenants at once, each with its own key and pages`, async () => {
    using folder = temporaryFolder()
    const tenants = Array.from({ length: TENANTS }, (_, i) => ({
      name: `tenant-${i}`,
      keys: [{ id: '1', secret: randomBytes(32).toString('hex') }],
      quota: '2M',
    }))
    const file = join(folder.path, 'tenants.json')
    writeFileSync(file, JSON.stringify({ tenants }), { mode: 0o600 })
    const { program, uri } = await startServer([
      ...['--memory', `${2 * TENANTS}M`, '--slab-size', '1M', '--tenants', file],
    ])
    await using _server = program
    const volumes: Volume[] = []
    const clients: Client[] = []
    try {
      for (const { name, keys } of tenants) {
        const key = { id: '1', secret: Buffer.from(keys[0]?.secret ?? '', 'hex') }
        const access = { tenant: name, key: () => key }
        volumes.push(await Volume.open({ servers: [[uri]], size: 2 * MIB, lanes: 1, access }))
      }
      for (const volume of volumes) clients.push(new Client(volume.engine.attachSocketpair(0)))
      for (let round = 1; round <= 2; round++) {
        const offset = round * 600 * 1024
        const written = await Promise.all(
          clients.map((client, i) => client.request(WRITE, offset, 4096, page(((i + round) % 255) + 1))),
        )
        expect(written.every((reply) => reply?.error === 0)).toBe(true)
        const read = await Promise.all(clients.map((client) => client.request(READ, offset, 4096)))
        for (const [i, reply] of read.entries()) expect(reply?.data).toEqual(page(((i + round) % 255) + 1))
      }
      expect(volumes.every(({ servers: [server] }) => server?.room === 0)).toBe(true)
    } finally {
      for (const client of clients) client.close()
      await Promise.all(volumes.map((volume) => volume.close()))
    }
  })
})

describe('one volume', () => {
  it('spreads over 16 servers, reads from all of them, and outlives one', async () => {
    // The one that is to be killed is a process; the others are the same, and start faster here.
    const doomed = await startServer(['--memory', '12M', '--slab-size', '1M'])
    await using _doomed = doomed.program
    const others = Array.from({ length: 15 }, () => new SwapServer({ memory: 12 * MIB, slabSize: MIB }))
    await using _others = {
      [Symbol.asyncDispose]: () => Promise.all(others.map((server) => server.close())).then(() => {}),
    }
    const servers = [
      doomed.uri,
      ...(await Promise.all(others.map((server) => server.listen('iwarp://127.0.0.1:0')))),
    ]
    await using volume = await Volume.open({
      servers: servers.map((uri) => [uri]),
      size: 256 * MIB,
      lanes: 2,
      replicas: 2,
      spares: 0,
      thin: true,
    })
    const clients = [0, 1].map((lane) => new Client(volume.engine.attachSocketpair(lane)))
    const each = async (from: number, to: number, step: (client: Client, slab: number) => Promise<void>) => {
      for (let slab = from; slab < to; slab++) await step(clients[slab % 2] as Client, slab)
    }
    const write = async (client: Client, slab: number) =>
      expect((await client.request(WRITE, slab * MIB + 4096, 4096, page(slab + 1)))?.error).toBe(0)
    const read = async (client: Client, slab: number) =>
      expect((await client.request(READ, slab * MIB + 4096, 4096))?.data).toEqual(page(slab + 1))
    await each(0, 64, write)
    await each(0, 64, read)
    const used = volume.engine.statistics().servers
    expect(used).toHaveLength(16)
    expect(used.reduce((sum, { writes }) => sum + writes, 0)).toBeGreaterThanOrEqual(128)
    const lost = new Promise<void>((resolve) => volume.onServerFailure(() => resolve()))
    await doomed.program.stop('SIGKILL')
    await each(0, 64, read)
    await lost
    await each(64, 72, write)
    await each(64, 72, read)
    expect((await clients[0]?.request(TRIM, 0, 72 * MIB))?.error).toBe(0)
    await each(0, 72, async (client, slab) =>
      expect((await client.request(READ, slab * MIB + 4096, 4096))?.data).toEqual(page(0)),
    )
    for (const client of clients) client.close()
  })
})
