// A server that is gone for a while and comes back with what it had, of a volume without another copy. The tests run at the
// same time: each waits for a server to be missed, which takes seconds.
import { spawn } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { stopProcess } from '../../stop-process.js'
import {
  complete,
  type Program,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

interface Status {
  slabs: { away: number; mapped: number; lost: number }
  servers: { state: string; slabs: number }[]
  statistics: { lostPages: number; lanes: { errors: string | number }[] }
}

/** Each server has slabs of 8 MiB. */
const SERVER = ['--memory', '16M', '--slab-size', '8M']

/** Before the heartbeats, whose time-out is 3 s: it is the pages that show that a server stands still. */
const CLIENT = ['--connections', '4', '--timeout', '2']

const qemuIo = (uri: string, ...commands: string[]) => [
  '-f',
  'raw',
  ...commands.flatMap((command) => ['-c', command]),
  uri,
]

const runQemuIo = (uri: string, ...commands: string[]) => complete('qemu-io', qemuIo(uri, ...commands))

/** qemu-io, while the test does something else. */
function start(uri: string, ...commands: string[]) {
  const child = spawn('qemu-io', qemuIo(uri, ...commands), { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text))
  const running = { output: () => output, over: false, ended: Promise.resolve('') }
  running.ended = new Promise((resolve) =>
    child.once('close', (status) => {
      running.over = true
      resolve(`${output}status ${status}`)
    }),
  )
  return running
}

const counts = ({ stderr }: Program, pattern: RegExp) => stderr.match(pattern)?.length ?? 0

let sockets = 0
const addresses = {
  iwarp: () => 'iwarp://127.0.0.1:0',
  shm: () => `shm:///tmp/rdmakit-reconnect-${process.pid}-${++sockets}.sock`,
}

describe.concurrent.each(Object.entries(addresses))('over %s, without a replica', (provider, address) => {
  // Over shm:// memory answers, whatever its process does: I/O goes on until the client leaves it for dead.
  const waits = provider !== 'shm'

  it('a server that stands still is waited for, and has what it had', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(SERVER, address())
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '16M', folder.path, CLIENT)
    await using _client = client
    await runQemuIo(nbd, 'write -P 0x5a 0 15M')
    const missed = () => counts(client, /16 MiB of the volume have no other copy/g)
    // Twice: what came back is gone again.
    for (let round = 1; round <= 2; round++) {
      const before = missed()
      await stopProcess(server.process)
      const reading = start(nbd, 'read -P 0x5a 1M 6M')
      const writing = start(nbd, `write -P ${round} 8M 1M`, 'write -P 0x77 14000000 1234')
      await until(missed, (now) => now > before)
      const away = await statusIn<Status>(folder.path)
      expect(away.slabs).toMatchObject({ away: 2, mapped: 0, lost: 0 })
      expect(away.servers).toMatchObject([{ state: 'away' }])
      if (waits)
        expect([reading.over, writing.over], reading.output() + writing.output() + client.stderr).toEqual([
          false,
          false,
        ])
      server.process.kill('SIGCONT')
      expect(await reading.ended).toMatch(/^(?!.*(fail|error)).*status 0$/is)
      expect(await writing.ended).toMatch(/^(?!.*(fail|error)).*status 0$/is)
      // As often as it was missed: on a machine that stands still itself that may be once more.
      await until(
        () => missed() - counts(client, /is back with its memory: 16 MiB/g),
        (still) => still === 0,
      )
      await runQemuIo(nbd, `read -P ${round} 8M 1M`, 'read -P 0x5a 0 8M')
    }
    const status = await until(
      () => statusIn<Status>(folder.path),
      ({ slabs }) => slabs.mapped === 2,
    )
    expect(status.slabs).toMatchObject({ away: 0, mapped: 2, lost: 0 })
    expect(status.servers).toMatchObject([{ state: 'up', slabs: 2 }])
    expect(status.statistics.lostPages).toBe(0)
    expect(status.statistics.lanes.map(({ errors }) => Number(errors))).toEqual(
      status.statistics.lanes.map(() => 0),
    )
    expect((await client.stop('SIGTERM')).status).toBe(0)
    expect(client.stderr).not.toMatch(/I\/O errors/)
  }, 120_000)

  it('a client that stood still so long that its server gave it up finds its memory again', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(
      [...SERVER, '--session-timeout', '1', '--log-level', 'info'],
      address(),
    )
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '8M', folder.path, ['--connections', '4'])
    await using _client = client
    await runQemuIo(nbd, 'write -P 0x5a 0 8M')
    await stopProcess(client.process)
    await server.says(/session lingers/)
    client.process.kill('SIGCONT')
    await runQemuIo(nbd, 'read -P 0x5a 0 8M')
    await client.says(/is back with its memory: 8 MiB/)
    await runQemuIo(nbd, 'read -P 0x5a 0 8M', 'write -P 0x11 0 8M', 'read -P 0x11 0 8M')
    const { slabs } = await until(
      () => statusIn<Status>(folder.path),
      ({ slabs }) => slabs.away === 0,
    )
    expect(slabs).toMatchObject({ mapped: 1, lost: 0 })
  }, 120_000)

  it('a server that stays away is given up when its time is over', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(SERVER, address())
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '8M', folder.path, [
      ...CLIENT,
      ...['--reconnect', '1'],
    ])
    await using _client = client
    await runQemuIo(nbd, 'write -P 0x5a 0 1M')
    await stopProcess(server.process)
    const reading = start(nbd, 'read -P 0x5a 0 1M')
    expect((await client.ends()).status).toBe(1)
    if (waits) expect(await reading.ended).toMatch(/read failed|Input\/output error|status 1/)
    expect(client.stderr).toMatch(/8 MiB of the volume have no other copy and wait for it/)
    expect(client.stderr).toMatch(
      /did not come back within 1 s.*8 MiB of the volume now answer with I\/O errors/,
    )
  }, 120_000)
})

describe.concurrent('of two replicas', () => {
  it('the server that went last has everything: both stand still, one after the other', async () => {
    using folder = temporaryFolder()
    const servers = [await startServer(SERVER), await startServer(SERVER)]
    const [first, last] = servers.map(({ program }) => program) as [Program, Program]
    await using _first = first
    await using _last = last
    const more = ['--server', servers[1]?.uri ?? '', '--replicas', '2', ...CLIENT]
    const { program: client, uri: nbd } = await startServe(servers[0]?.uri ?? '', '16M', folder.path, more)
    await using _client = client
    await runQemuIo(nbd, 'write -P 0x5a 0 4M')
    await stopProcess(first.process)
    // Written when the first is gone: what it has is old from here on.
    await runQemuIo(nbd, 'write -P 0x66 0 4M')
    await client.says(/have one replica less/)
    await stopProcess(last.process)
    const reading = start(nbd, 'read -P 0x66 0 4M')
    await client.says(/16 MiB of the volume have no other copy and wait for it/)
    first.process.kill('SIGCONT')
    await client.says(/joins again, with empty memory/)
    expect(reading.over).toBe(false)
    last.process.kill('SIGCONT')
    expect(await reading.ended).toMatch(/^(?!.*(fail|error)).*status 0$/is)
    await client.says(/16 MiB of the volume repaired/)
    await last.stop('SIGKILL')
    await runQemuIo(nbd, 'read -P 0x66 0 4M', 'read -P 0 4M 12M')
  }, 120_000)
})
