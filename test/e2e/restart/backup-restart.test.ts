// nbd-client serve --state --backup: its process ends in the middle of writes, with its servers or without them.
import { createHash, randomFillSync } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { OWN_LOOPBACK } from '../../own-loopback.js'
import { busyWriter } from '../helpers/busy-writer.js'
import { complete, NBD_CLIENT, Program, startServer, temporaryFolder, until } from '../helpers/processes.js'

const MIB = 2 ** 20
const SIZE = 8 * MIB
const SERVER = ['--memory', '24M', '--slab-size', '2M']

async function startServing(folder: string, server: string) {
  const program = new Program(
    NBD_CLIENT,
    [
      ...['serve', '--server', server, '--size', '8M', '--connections', '2', '--refill-rate', '0'],
      ...['--unix', join(folder, 'nbd.sock'), '--state', join(folder, 'state')],
      ...['--backup', join(folder, 'backup'), '--backup-queue', '2M', '--ack', 'backup', '--metrics', '0'],
    ],
    { RDMAKIT_RUN: folder },
  )
  const [, metrics] = await program.prints(/^metrics (\S+)$/m)
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, metrics: metrics as string, uri: uri as string }
}

/** The volume's first `bytes`. */
async function read(uri: string, folder: string, bytes = SIZE): Promise<Buffer> {
  const copy = join(folder, 'copy')
  await complete('qemu-img', ['dd', '-O', 'raw', 'bs=1M', `count=${bytes / MIB}`, `if=${uri}`, `of=${copy}`])
  return readFileSync(copy)
}

const hash = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')

/** The values of one metric by its labels, as Prometheus gets them. */
async function scrape(endpoint: string, name: string): Promise<Record<string, number>> {
  const text = await (await fetch(endpoint)).text()
  const found = [...text.matchAll(new RegExp(`^rdmakit_nbd_${name}(?:\\{(.*)\\})? (\\S+)$`, 'gm'))]
  return Object.fromEntries(found.map(([, labels = '', value]) => [labels, Number(value)]))
}

const untilMetric = (endpoint: string, name: string, holds: (values: Record<string, number>) => boolean) =>
  until(() => scrape(endpoint, name), holds)

describe.concurrent.each(['iwarp', 'shm'])('an export with one replica and a backup over %s', (provider) => {
  const address = (folder: string) =>
    provider === 'shm' ? `shm://${join(folder, 'server.sock')}` : `iwarp://${OWN_LOOPBACK}:0`

  /** An export whose first half is random, and whose process died while clients wrote to the other one. */
  async function killed(folder: string) {
    const server = await startServer(SERVER, address(folder))
    const { program, metrics, uri } = await startServing(folder, server.uri)
    const source = join(folder, 'source')
    writeFileSync(source, randomFillSync(Buffer.alloc(SIZE)))
    await complete('nbdcopy', [source, uri])
    expect(await scrape(metrics, 'backup_up')).toEqual({ '': 1 })
    expect(await scrape(metrics, 'backup_pages_behind')).toEqual({ '': 0 })
    expect(await scrape(metrics, 'backup_missed_pages_total')).toEqual({ '': 0 })
    expect(await scrape(metrics, 'backup_bytes_total')).toEqual({ 'kind="read"': 0, 'kind="write"': SIZE })
    using _busy = await busyWriter(uri, SIZE / 2, SIZE / 2)
    await program.stop('SIGKILL')
    return { server, half: readFileSync(source).subarray(0, SIZE / 2) }
  }

  it('is found again when its process and its only server were killed, and goes on without a server', async () => {
    using folder = temporaryFolder()
    const { server, half } = await killed(folder.path)
    await server.program.stop('SIGKILL')
    const next = await startServing(folder.path, server.uri)
    await using _next = next.program
    expect(hash(await read(next.uri, folder.path, SIZE / 2))).toBe(hash(half))
    expect(await scrape(next.metrics, 'server_up')).toEqual({ [`server="${server.uri}"`]: 0 })
    expect(await scrape(next.metrics, 'slabs')).toMatchObject({ 'state="backup"': 4, 'state="lost"': 0 })
    const bytes = await scrape(next.metrics, 'backup_bytes_total')
    expect(bytes['kind="read"']).toBeGreaterThanOrEqual(SIZE / 2)
    // Pages whose WRITE was open and never answered may be errors, until they are rewritten.
    await complete('qemu-io', ['-f', 'raw', '-c', `write -P 77 ${SIZE / 2} ${SIZE / 2}`, next.uri])
    const written = Buffer.concat([half, Buffer.alloc(SIZE / 2, 77)])
    expect(hash(await read(next.uri, folder.path))).toBe(hash(written))
    const again = await startServer(SERVER, server.uri)
    await using _again = again.program
    await untilMetric(next.metrics, 'slabs', (slabs) => slabs['state="mapped"'] === 4)
    expect(await scrape(next.metrics, 'server_up')).toEqual({ [`server="${server.uri}"`]: 1 })
    expect(hash(await read(next.uri, folder.path))).toBe(hash(written))
    expect(await scrape(next.metrics, 'lost_pages')).toEqual({ '': 0 })
    expect((await next.program.stop()).status).toBe(0)
  }, 120_000)

  it('is found again with its server, has every page in the backup again, and outlives that server too', async () => {
    using folder = temporaryFolder()
    const { server, half } = await killed(folder.path)
    const next = await startServing(folder.path, server.uri)
    await using _next = next.program
    // Pages on their way to the file are there before the first client is.
    expect(await scrape(next.metrics, 'backup_pages_behind')).toEqual({ '': 0 })
    const found = await read(next.uri, folder.path)
    expect(hash(found.subarray(0, SIZE / 2))).toBe(hash(half))
    await server.program.stop('SIGKILL')
    await untilMetric(next.metrics, 'slabs', (slabs) => slabs['state="backup"'] === 4)
    expect(hash(await read(next.uri, folder.path))).toBe(hash(found))
    expect(await scrape(next.metrics, 'backup_up')).toEqual({ '': 1 })
    expect(await scrape(next.metrics, 'errors_total')).toEqual({ '': 0 })
    // An end by SIGTERM leaves it for the next one, too.
    expect((await next.program.stop()).status).toBe(0)
    const last = await startServing(folder.path, server.uri)
    await using _last = last.program
    expect(hash(await read(last.uri, folder.path))).toBe(hash(found))
    expect((await last.program.stop()).status).toBe(0)
  }, 120_000)
})
