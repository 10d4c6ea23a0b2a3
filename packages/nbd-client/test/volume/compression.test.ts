// Pages that are compressed on the wire: what comes back, what it costs the servers, and what outlives whom.
import { randomBytes } from 'node:crypto'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { Compress } from '@rdmakit/remote-volume'
import type { SwapServer } from '@rdmakit/swap-server'
import type { MemoryRegion } from '@rdmakit/verbs'
import { beforeEach, describe, expect, it } from 'vitest'
import { ADDRESSES, lentBy, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import type { VolumeOptions } from '../../src/engine/block-volume.js'
import { Volume } from '../../src/engine/block-volume.js'
import { totals } from '../../src/report/client-status.js'
import { collectVolumeMetrics } from '../../src/report/metrics.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import {
  endWithTest,
  eventually,
  prepare,
  startVolume,
  temporaryFolder,
  Workload,
} from '../helpers/volume-client.js'

const PAGE = 4096
const SIZE = 4 * MIB

let servers: { server: SwapServer; uri: string; regions: readonly MemoryRegion[] }[]

beforeEach(() => {
  servers = []
})

async function lend(uri: string): Promise<void> {
  const served = await serve(16, uri)
  servers.push({ ...served, regions: lentBy(served.server) })
}

function open(engine: NonNullable<VolumeOptions['engine']>, options: Partial<VolumeOptions> = {}) {
  const uris = servers.map(({ uri }) => [uri])
  return Volume.open({ servers: uris, size: SIZE, lanes: 1, engine, ...options })
}

/** Half of the pages, in runs, are as random as they come; the others are text. */
function mixed(): Buffer {
  const data = randomBytes(SIZE)
  for (let page = 0; page < SIZE / PAGE; page++)
    if (page % 16 < 8) data.fill(`page ${page} of many; `, page * PAGE, (page + 1) * PAGE)
  return data
}

async function write(client: Client, data: Buffer): Promise<void> {
  for (let at = 0; at < SIZE; at += MIB)
    expect((await client.request(WRITE, at, MIB, data.subarray(at, at + MIB)))?.error).toBe(0)
}

async function read(client: Client): Promise<Buffer> {
  const parts: Buffer[] = []
  for (let at = 0; at < SIZE; at += MIB) {
    const answer = await client.request(READ, at, MIB)
    expect(answer?.error).toBe(0)
    parts.push(answer?.data as Buffer)
  }
  return Buffer.concat(parts)
}

const sent = (volume: Volume) =>
  volume.engine.statistics().servers.reduce((sum, { bytesWritten }) => sum + bytesWritten, 0)

describe.each(Object.entries(ADDRESSES))('compressed pages over %s', (_, address) => {
  it('come back, and cost the wire less', async () => {
    await lend(address())
    await using volume = await open({ compress: 'lz4-always' })
    const client = new Client(volume.engine.attachSocketpair(0))
    const data = mixed()
    await write(client, data)
    expect(sent(volume)).toBeLessThan(SIZE * 0.55)
    expect((await read(client)).equals(data)).toBe(true)
    const { pagesCompressed, bytesSpared, pagesWrong } = totals(volume.engine.statistics())
    expect(pagesCompressed).toBe(SIZE / PAGE / 2)
    expect(bytesSpared).toBeGreaterThan(SIZE * 0.9)
    expect(pagesWrong).toBe(0)
    client.close()
  })

  it('are repaired from another replica, and survive the death of a server', async () => {
    for (let i = 0; i < 3; i++) await lend(address())
    await using volume = await open({ compress: 'lz4-always' }, { replicas: 2 })
    const client = new Client(volume.engine.attachSocketpair(0))
    const data = mixed()
    await write(client, data)
    for (let slab = 0; slab < SIZE / MIB; slab++) {
      const [first] = volume.engine.lookUpSlab(slab) ?? []
      const held = servers.flatMap(({ regions }) => regions).find(({ address }) => address === first?.address)
      new Uint8Array(held?.buffer as ArrayBuffer).fill(0xa5, 3 * PAGE + 5, 3 * PAGE + 9)
    }
    const repaired: number[] = []
    volume.engine.on('pageRepaired', ({ page }) => repaired.push(page))
    expect((await read(client)).equals(data)).toBe(true)
    await eventually(() => repaired.length === 4)
    expect(repaired.sort((a, b) => a - b)).toEqual([0, 1, 2, 3].map((slab) => slab * (MIB / PAGE) + 3))
    await servers[0]?.server.close()
    expect((await read(client)).equals(data)).toBe(true)
    // The volume hears of the loss behind its lanes, and counts its slabs as whole until then.
    await eventually(() => volume.servers.some(({ failure }) => failure !== undefined))
    await eventually(() => volume.slabs.mapped === 4)
    await servers[1]?.server.close()
    expect((await read(client)).equals(data)).toBe(true)
    client.close()
  })

  it('are read by the next process after a kill, and by one that does not compress', async () => {
    for (let i = 0; i < 2; i++) await lend(address())
    const uris = servers.map(({ uri }) => uri)
    const state = temporaryFolder()
    const start = (compress: Compress) => startVolume({ state, servers: uris, replicas: 2, compress })
    const workload = new Workload()
    let volume = start('lz4-always')
    await volume.ready()
    expect(statSync(join(state, 'pages.lz4')).mode & 0o777).toBe(0o600)
    for (const next of ['lz4-always', 'none', 'lz4'] as const) {
      const before = workload.written
      const running = workload.run(volume)
      await eventually(() => workload.written > before + 100)
      await volume.end('SIGKILL')
      await running
      volume = start(next)
      expect(await volume.ready()).toMatch(/^degraded 0 lost 0$/m)
      await workload.repeat(volume)
      expect(await workload.verify(volume)).toBe(0)
      expect(JSON.parse(readFileSync(join(state, 'volume.json'), 'utf8')).version).toBe(2)
    }
    await prepare(volume, volume.process.pid as number)
    const from = volume.output.length
    volume.process.kill('SIGHUP')
    endWithTest(Number((await volume.heard(/^successor (\d+)$/m, from))[1]))
    expect(await workload.verify(volume)).toBe(0)
  })

  it('are given up where nothing is gained', async () => {
    await lend(address())
    await using volume = await open({ compress: 'lz4' })
    const client = new Client(volume.engine.attachSocketpair(0))
    expect(volume.engine.statistics().lanes[0]?.compressing).toBe(true)
    const data = randomBytes(SIZE)
    await write(client, data)
    expect(totals(volume.engine.statistics())).toMatchObject({ compressing: 0, bytesSpared: 0 })
    expect((await read(client)).equals(data)).toBe(true)
    client.close()
  })
})

describe('compression', () => {
  it('takes whole pages only', async () => {
    await lend(ADDRESSES.shm())
    await using volume = await open({ compress: 'lz4', minimumBlockSize: 512 })
    const client = new Client(volume.engine.attachSocketpair(0))
    expect((await client.request(WRITE, 512, 512, Buffer.alloc(512)))?.error).toBe(22)
    client.close()
  })

  it('is refused without checksums', () => {
    expect(() => new BlockEngine({ size: SIZE, slabSize: MIB, compress: 'lz4', checksums: false })).toThrow(
      /only with checksums/,
    )
  })

  it('is in the metrics where it is asked for', async () => {
    await lend(ADDRESSES.shm())
    await using volume = await open({ compress: 'lz4-always' })
    const client = new Client(volume.engine.attachSocketpair(0))
    await write(client, mixed())
    const text = await collectVolumeMetrics(volume).metrics()
    expect(text).toMatch(/^rdmakit_nbd_compressing_lanes 1$/m)
    expect(text).toMatch(/^rdmakit_nbd_compressed_pages_total 512$/m)
    expect(text).toMatch(/^rdmakit_nbd_spared_bytes_total \d{6,}$/m)
    client.close()
    await using plain = await open({})
    expect(await collectVolumeMetrics(plain).metrics()).not.toMatch(/rdmakit_nbd_compress/)
  })
})
