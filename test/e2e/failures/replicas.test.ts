// Volumes with replicas: servers that are killed and come back while clients verify what they wrote.
import { randomFillSync } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { VerifyingFio } from '../helpers/fio.js'
import {
  complete,
  NBD_CLIENT,
  Program,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const MIB = 2 ** 20

interface Status {
  slabs: { mapped: number; degraded: number; refilling: number; lost: number }
  servers: { index: number; state: string }[]
  statistics: {
    lostPages: number
    lanes: { writes: number; errors: number }[]
    refill: { slabsFilled: number }
  }
}

/** An nbd-client with replicas on `servers`. */
async function serve(servers: readonly string[], size: string, folder: string, args: readonly string[]) {
  const program = new Program(
    NBD_CLIENT,
    [
      'serve',
      ...servers.flatMap((uri) => ['--server', uri]),
      ...['--size', size, '--unix', join(folder, 'nbd.sock'), '--connections', '2', ...args],
    ],
    { RDMAKIT_RUN: folder },
  )
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, uri: uri as string, status: () => statusIn<Status>(folder) }
}

/** Until clients have written `pages` more than now. */
async function written(status: () => Promise<Status>, pages: number): Promise<void> {
  const count = ({ statistics }: Status) => statistics.lanes.reduce((sum, { writes }) => sum + writes, 0)
  const before = count(await status())
  await until(status, (now) => count(now) >= before + pages)
}

/** More than what fio writes before it reads that back. */
const ENOUGH_PAGES = 1000

describe.each(['iwarp', 'shm'])('a volume with two replicas over %s', (provider) => {
  let sockets = 0
  const address = (folder: string) =>
    provider === 'shm' ? `shm://${join(folder, `server-${++sockets}.sock`)}` : 'iwarp://127.0.0.1:0'
  const server = (folder: string) => startServer(['--memory', '40M', '--slab-size', '4M'], address(folder))

  it('loses nothing when one of two servers is killed under fio --verify', async () => {
    using folder = temporaryFolder()
    const [first, second] = [await server(folder.path), await server(folder.path)]
    await using _first = first.program
    await using _second = second.program
    const client = await serve([first.uri, second.uri], '24M', folder.path, ['--replicas', '2'])
    await using _client = client.program
    expect((await client.status()).slabs).toEqual({
      mapped: 6,
      degraded: 0,
      refilling: 0,
      away: 0,
      backup: 0,
      lost: 0,
    })
    await using fio = new VerifyingFio(client.uri, '24m')
    await written(client.status, ENOUGH_PAGES)
    await second.program.stop('SIGKILL')
    await client.program.says(/lost \S+: .*nothing of the volume is lost; 24 MiB have one replica less/)
    await written(client.status, ENOUGH_PAGES)
    await fio.end()
    const after = await client.status()
    expect(after.slabs).toMatchObject({ degraded: 6, lost: 0 })
    expect(after.statistics.lostPages).toBe(0)
    for (const lane of after.statistics.lanes) expect(lane.errors).toBe(0)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
  })

  it('is refilled on a third server under load, and survives the loss of the first', async () => {
    using folder = temporaryFolder()
    const servers = [await server(folder.path), await server(folder.path), await server(folder.path)]
    await using _all = {
      async [Symbol.asyncDispose]() {
        for (const { program } of servers) await program[Symbol.asyncDispose]()
      },
    }
    const uris = servers.map(({ uri }) => uri)
    const client = await serve(uris, '24M', folder.path, ['--replicas', '2', '--refill-rate', '0'])
    await using _client = client.program
    await using fio = new VerifyingFio(client.uri, '24m')
    await written(client.status, ENOUGH_PAGES)
    await servers[0]?.program.stop('SIGKILL')
    await client.program.says(/of the volume repaired/)
    await until(client.status, ({ slabs }) => slabs.mapped === 6)
    await servers[1]?.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.degraded === 6)
    await written(client.status, ENOUGH_PAGES)
    await fio.end()
    const after = await client.status()
    expect(after.slabs.lost).toBe(0)
    expect(after.statistics.refill.slabsFilled).toBeGreaterThan(0)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
  })
})

// At the same time: a server that has failed is called every 2 s.
describe.concurrent('a server that comes back', () => {
  it('is not taken for one that holds data: it is refilled, and then stands in for the other', async () => {
    using folder = temporaryFolder()
    const options = ['--memory', '16M', '--slab-size', '4M']
    const at = `shm://${join(folder.path, 'a.sock')}`
    const first = await startServer(options, at)
    const second = await startServer(options, `shm://${join(folder.path, 'b.sock')}`)
    await using _first = first.program
    await using _second = second.program
    const client = await serve([first.uri, second.uri], '8M', folder.path, ['--replicas', '2'])
    await using _client = client.program
    const source = join(folder.path, 'source')
    writeFileSync(source, randomFillSync(Buffer.alloc(8 * MIB)))
    const compare = () => complete('qemu-img', ['compare', '-f', 'raw', '-F', 'raw', source, client.uri])
    await complete('nbdcopy', [source, client.uri])
    await first.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.degraded === 2)
    await compare()
    const again = await startServer(options, at)
    await using _again = again.program
    await until(client.status, ({ slabs }) => slabs.mapped === 2)
    await second.program.stop('SIGKILL')
    await until(client.status, ({ servers }) =>
      servers.some(({ index, state }) => index === 1 && state === 'failed'),
    )
    await compare()
    expect((await client.status()).statistics.lostPages).toBe(0)
  })

  it('takes new data for what was lost, and only those pages answer EIO', async () => {
    using folder = temporaryFolder()
    const options = ['--memory', '8M', '--slab-size', '4M']
    const at = `shm://${join(folder.path, 'a.sock')}`
    const first = await startServer(options, at)
    const second = await startServer(options, `shm://${join(folder.path, 'b.sock')}`)
    await using _first = first.program
    await using _second = second.program
    // Four slabs on two servers of two: each holds half of the volume, once.
    const client = await serve([first.uri, second.uri], '16M', folder.path, [])
    await using _client = client.program
    const io = (...commands: string[]) =>
      complete('sh', [
        '-c',
        'qemu-io "$@" 2>&1 || true',
        'qemu-io',
        '-f',
        'raw',
        ...commands.flatMap((each) => ['-c', each]),
        client.uri,
      ])
    const errors = async () => {
      const slabs = await Promise.all([0, 4, 8, 12].map((at) => io(`read -P 0x5a ${at}M 4M`)))
      return slabs.filter((output) => /Input\/output error/.test(output))
    }
    expect(await io('write -P 0x5a 0 16M')).not.toMatch(/fail|error/i)
    await first.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.lost === 2)
    expect(await errors()).toHaveLength(2)
    const again = await startServer(options, at)
    await using _again = again.program
    await until(client.status, ({ slabs }) => slabs.mapped === 4)
    await client.program.says(/joins again, with empty memory/)
    expect(client.program.stderr.match(/8 MiB of the volume now answer with I\/O errors/g)).toHaveLength(1)
    expect((await client.status()).statistics.lostPages).toBe(2048)
    expect(await errors()).toHaveLength(2)
    expect(await io('write -P 0x5a 0 16M', 'read -P 0x5a 0 16M')).not.toMatch(/fail|error/i)
    expect(await errors()).toEqual([])
    expect((await client.status()).statistics.lostPages).toBe(0)
  })
})

describe('what does not fit', () => {
  let server: Program
  let uri: string
  beforeAll(async () => {
    ;({ program: server, uri } = await startServer(['--memory', '64M']))
  })
  afterAll(() => server.stop())

  it.each([
    [
      'more replicas than servers',
      ['--replicas', '2'],
      /2 replicas of each slab need 2 servers and there are 1/,
    ],
    ['four replicas', ['--replicas', '4'], /whole number from 1 to 3/],
    ['an unknown acknowledgement', ['--ack', 'none'], /Allowed choices are all, one/],
    ['a read-ahead that is no multiple of 64 KiB', ['--read-ahead', '100K'], /--read-ahead/],
    ['a read-ahead of more than 1 MiB', ['--read-ahead', '2M'], /--read-ahead 2M is more than 1M/],
    ['a rate that is none', ['--refill-rate', 'fast'], /--refill-rate "fast" is not a size/],
  ])('is refused: %s', async (_, args, message) => {
    using folder = temporaryFolder()
    await using client = new Program(
      NBD_CLIENT,
      ['serve', '--server', uri, '--size', '64M', '--unix', join(folder.path, 'nbd.sock'), ...args],
      { RDMAKIT_RUN: folder.path },
    )
    expect((await client.ends()).status).toBe(64)
    expect(client.stderr).toMatch(message)
  })
})
