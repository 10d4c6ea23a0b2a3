// Volumes with replicas: servers that are killed and come back while clients verify what they wrote.
import { spawn } from 'node:child_process'
import { randomFillSync } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { must, NBD_CLIENT, Program, startServer, statusIn, temporaryFolder } from './processes.js'

interface Status {
  slabs: { mapped: number; degraded: number; refilling: number; lost: number }
  servers: { uri: string; state: string; slabs: number }[]
  statistics: { lostPages: number; lanes: { errors: number }[]; refill: { slabsFilled: number } }
}

/** An nbd-client with replicas on `servers`. */
async function serve(servers: readonly string[], size: string, folder: string, args: readonly string[]) {
  const program = new Program(
    NBD_CLIENT,
    [
      'serve',
      ...servers.flatMap((uri) => ['--server', uri]),
      ...['--size', size, '--unix', join(folder, 'nbd.sock'), ...args],
    ],
    { RDMAKIT_RUN: folder },
  )
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, uri: uri as string, status: () => statusIn<Status>(folder) }
}

/** Asks for the status until `wanted` holds of it; each answer is an event of its own. */
async function until(status: () => Status, wanted: (status: Status) => boolean, timeoutMs = 30_000) {
  const deadline = Date.now() + timeoutMs
  for (;;) {
    const now = status()
    // The status was awaited with the event loop at a stand; what programs print comes in now.
    await new Promise((resolve) => setImmediate(resolve))
    if (wanted(now)) return now
    if (Date.now() > deadline) throw new Error(`still ${JSON.stringify(now)}`)
  }
}

/** fio writes at random for `seconds` and verifies; its first status says that it is writing. */
function verifyingFio(uri: string, seconds: number) {
  const child = spawn(
    'fio',
    [
      ...['--name=verify', '--ioengine=nbd', `--uri=${uri}`, '--rw=randwrite', '--bs=4k', '--iodepth=16'],
      ...['--size=96m', '--time_based', `--runtime=${seconds}`, '--verify=crc32c', '--verify_fatal=1'],
      ...['--verify_backlog=1024', '--verify_state_save=0', '--status-interval=1'],
    ],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  )
  let output = ''
  child.stdout.on('data', (text) => {
    output += text
  })
  child.stderr.on('data', (text) => {
    output += text
  })
  const started = new Promise<void>((resolve) => child.stdout.once('data', () => resolve()))
  const ended = new Promise<{ status: number | null; output: string }>((resolve) =>
    child.once('close', (status) => resolve({ status, output })),
  )
  return { started, ended }
}

describe.each(['iwarp', 'shm'])('a volume with two replicas over %s', (provider) => {
  let sockets = 0
  const address = (folder: string) =>
    provider === 'shm' ? `shm://${join(folder, `server-${++sockets}.sock`)}` : 'iwarp://127.0.0.1:0'
  const server = (folder: string) => startServer(['--memory', '160M', '--slab-size', '16M'], address(folder))

  it('loses nothing when one of two servers is killed under fio --verify', async () => {
    using folder = temporaryFolder()
    const [first, second] = [await server(folder.path), await server(folder.path)]
    await using _first = first.program
    await using _second = second.program
    const client = await serve([first.uri, second.uri], '96M', folder.path, ['--replicas', '2'])
    await using _client = client.program
    expect(client.status().slabs).toEqual({
      mapped: 6,
      degraded: 0,
      refilling: 0,
      away: 0,
      backup: 0,
      lost: 0,
    })
    const fio = verifyingFio(client.uri, 6)
    await fio.started
    await second.program.stop('SIGKILL')
    const { status, output } = await fio.ended
    expect(status, output).toBe(0)
    expect(client.program.stderr).toMatch(
      /lost \S+: .*nothing of the volume is lost; 96 MiB have a replica less/,
    )
    const after = client.status()
    expect(after.slabs).toMatchObject({ degraded: 6, lost: 0 })
    expect(after.statistics.lostPages).toBe(0)
    for (const lane of after.statistics.lanes) expect(lane.errors).toBe(0)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
  }, 60_000)

  it('is refilled on a third server under load, and survives the loss of the first', async () => {
    using folder = temporaryFolder()
    const servers = [await server(folder.path), await server(folder.path), await server(folder.path)]
    await using _all = {
      async [Symbol.asyncDispose]() {
        for (const { program } of servers) await program[Symbol.asyncDispose]()
      },
    }
    const uris = servers.map(({ uri }) => uri)
    const client = await serve(uris, '96M', folder.path, ['--replicas', '2', '--refill-rate', '0'])
    await using _client = client.program
    const fio = verifyingFio(client.uri, 10)
    await fio.started
    await servers[0]?.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.mapped === 6)
    await servers[1]?.program.stop('SIGKILL')
    const { status, output } = await fio.ended
    expect(status, output).toBe(0)
    const after = client.status()
    expect(after.slabs.lost).toBe(0)
    expect(after.statistics.refill.slabsFilled).toBeGreaterThan(0)
    expect(client.program.stderr).toMatch(/of the volume repaired/)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
  }, 90_000)
})

describe('a server that comes back', () => {
  it('is not taken for one that holds data: it is refilled, and then stands in for the other', async () => {
    using folder = temporaryFolder()
    const at = `shm://${join(folder.path, 'a.sock')}`
    const first = await startServer(['--memory', '64M', '--slab-size', '16M'], at)
    const second = await startServer(
      ['--memory', '64M', '--slab-size', '16M'],
      `shm://${join(folder.path, 'b.sock')}`,
    )
    await using _second = second.program
    const client = await serve([first.uri, second.uri], '32M', folder.path, ['--replicas', '2'])
    await using _client = client.program
    const source = join(folder.path, 'source')
    writeFileSync(source, randomFillSync(Buffer.alloc(32 * 2 ** 20)))
    must('nbdcopy', [source, client.uri])
    await first.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.degraded === 2)
    must('qemu-img', ['compare', '-f', 'raw', '-F', 'raw', source, client.uri])
    const again = await startServer(['--memory', '64M', '--slab-size', '16M'], at)
    await using _again = again.program
    await until(client.status, ({ slabs }) => slabs.mapped === 2)
    await second.program.stop('SIGKILL')
    await until(client.status, ({ servers }) => servers.some(({ state }) => state === 'failed'))
    must('qemu-img', ['compare', '-f', 'raw', '-F', 'raw', source, client.uri])
    expect(client.status().statistics.lostPages).toBe(0)
  }, 60_000)

  it('takes new data for what was lost, and only those pages answer EIO', async () => {
    using folder = temporaryFolder()
    const at = `shm://${join(folder.path, 'a.sock')}`
    const first = await startServer(['--memory', '32M', '--slab-size', '16M'], at)
    const second = await startServer(
      ['--memory', '32M', '--slab-size', '16M'],
      `shm://${join(folder.path, 'b.sock')}`,
    )
    await using _second = second.program
    // Four slabs on two servers of two: each holds half of the volume, once.
    const client = await serve([first.uri, second.uri], '64M', folder.path, [])
    await using _client = client.program
    must('qemu-io', ['-f', 'raw', '-c', 'write -P 0x5a 0 64M', client.uri])
    await first.program.stop('SIGKILL')
    await until(client.status, ({ slabs }) => slabs.lost === 2)
    const errors = () =>
      [0, 16, 32, 48].filter((at) => {
        const child = must('sh', [
          '-c',
          `qemu-io -f raw -c 'read -P 0x5a ${at}M 16M' '${client.uri}' 2>&1 || true`,
        ])
        return /Input\/output error/.test(child)
      })
    expect(errors()).toHaveLength(2)
    const again = await startServer(['--memory', '32M', '--slab-size', '16M'], at)
    await using _again = again.program
    await until(client.status, ({ slabs }) => slabs.mapped === 4)
    expect(client.program.stderr.match(/32 MiB of the volume now answer with I\/O errors/g)).toHaveLength(1)
    expect(client.status().statistics.lostPages).toBe(8192)
    expect(errors()).toHaveLength(2)
    must('qemu-io', ['-f', 'raw', '-c', 'write -P 0x5a 0 64M', '-c', 'read -P 0x5a 0 64M', client.uri])
    expect(errors()).toEqual([])
    expect(client.status().statistics.lostPages).toBe(0)
  }, 60_000)
})

describe('what does not fit', () => {
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
    const { program, uri } = await startServer(['--memory', '64M'])
    await using _server = program
    const client = new Program(
      NBD_CLIENT,
      ['serve', '--server', uri, '--size', '64M', '--unix', join(folder.path, 'nbd.sock'), ...args],
      { RDMAKIT_RUN: folder.path },
    )
    await using _client = client
    expect((await client.ends()).status).toBe(64)
    expect(client.stderr).toMatch(message)
  })
})
