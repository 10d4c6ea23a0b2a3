// How large it may get: a volume of 1 TiB, 64 tenants on one server, 16 servers under one volume.
import { randomBytes } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Volume } from '@rdmakit/nbd-client'
import { describe, expect, it } from 'vitest'
import { Client, MIB, READ, TRIM, WRITE } from '../../packages/nbd-client/test/fixture.js'
import { must, type Program, startServe, startServer, statusIn, temporaryFolder } from './processes.js'

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

async function dispose(programs: readonly Program[]): Promise<void> {
  for (const program of programs) await program[Symbol.asyncDispose]()
}

const page = (value: number) => Buffer.alloc(4096, value)

describe('a thin volume of 1 TiB', () => {
  const PLACES = 64
  const GIB = 2 ** 30
  const at = (place: number) => place * 16 * GIB + place * 4096

  it('is attached in under 5 s and costs under 300 MiB, written and read all over', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '96M', '--slab-size', '1M'])
    await using _server = server
    const started = async (size: string) => {
      const start = performance.now()
      const client = await startServe(uri, size, folder.path, ['--thin'])
      return { client, seconds: (performance.now() - start) / 1000 }
    }
    const small = await started('1M')
    await small.client.program.stop()
    const { client, seconds } = await started('1T')
    await using _client = client.program
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
    const status = statusIn<Status>(folder.path)
    expect(status.thin.unmapped).toBe(2 ** 20 - PLACES)
    expect(status).toMatchObject({
      slabs: { mapped: PLACES, lost: 0 },
      statistics: { writtenPages: PLACES * 16 },
    })
    const memory = memoryOf(client.program, 'VmHWM') / MIB
    console.log(
      `1 TiB: attached in ${seconds.toFixed(2)} s (1 MiB: ${small.seconds.toFixed(2)}), at most ${memory.toFixed(0)} MiB of memory`,
    )
    // What a loaded machine takes for the start of any process does not count.
    expect(seconds - small.seconds).toBeLessThan(5)
    expect(memory).toBeLessThan(300)
    touch((place) => `discard ${at(place)} 64k`)
    const deadline = Date.now() + 20_000
    while (statusIn<Status>(folder.path).thin.given < PLACES) {
      if (Date.now() > deadline)
        throw new Error(`still ${JSON.stringify(statusIn<Status>(folder.path).thin)}`)
      await new Promise((resolve) => setImmediate(resolve))
    }
    expect(statusIn<Status>(folder.path).thin.unmapped).toBe(2 ** 20)
  }, 120_000)
})

describe('one server', () => {
  it('lends memory to 64 tenants at once, each with its own key and pages', async () => {
    using folder = temporaryFolder()
    const tenants = Array.from({ length: 64 }, (_, i) => ({
      name: `tenant-${i}`,
      keys: [{ id: '1', secret: randomBytes(32).toString('hex') }],
      quota: '2M',
    }))
    const file = join(folder.path, 'tenants.json')
    writeFileSync(file, JSON.stringify({ tenants }), { mode: 0o600 })
    const { program, uri } = await startServer([
      ...['--memory', '128M', '--slab-size', '1M', '--tenants', file],
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
      for (let round = 1; round <= 4; round++) {
        const offset = round * 300 * 1024
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
  }, 120_000)
})

describe('one volume', () => {
  it('spreads over 16 servers, reads from all of them, and outlives one', async () => {
    const servers = await Promise.all(
      Array.from({ length: 16 }, () => startServer(['--memory', '12M', '--slab-size', '1M'])),
    )
    await using _servers = { [Symbol.asyncDispose]: () => dispose(servers.map(({ program }) => program)) }
    await using volume = await Volume.open({
      servers: servers.map(({ uri }) => [uri]),
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
    await servers[5]?.program.stop('SIGKILL')
    await each(0, 64, read)
    await lost
    await each(64, 72, write)
    await each(64, 72, read)
    expect((await clients[0]?.request(TRIM, 0, 72 * MIB))?.error).toBe(0)
    await each(0, 72, async (client, slab) =>
      expect((await client.request(READ, slab * MIB + 4096, 4096))?.data).toEqual(page(0)),
    )
    for (const client of clients) client.close()
  }, 120_000)
})
