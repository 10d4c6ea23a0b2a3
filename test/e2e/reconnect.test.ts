// A server that is gone for a while and comes back with what it had, of a volume without another copy.
import { spawn } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { eventually } from '../eventually.js'
import { must, type Program, startServe, startServer, statusIn, temporaryFolder } from './processes.js'

interface Status {
  slabs: { away: number; mapped: number; lost: number }
  servers: { state: string; slabs: number }[]
  statistics: { lostPages: number; lanes: { errors: string | number }[] }
}

const qemuIo = (uri: string, ...commands: string[]) => [
  '-f',
  'raw',
  ...commands.flatMap((command) => ['-c', command]),
  uri,
]

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

const says = (program: Program, pattern: RegExp) => eventually(() => pattern.test(program.stderr))

let sockets = 0
const addresses = {
  iwarp: () => 'iwarp://127.0.0.1:0',
  shm: () => `shm:///tmp/rdmakit-reconnect-${process.pid}-${++sockets}.sock`,
}

describe.each(Object.entries(addresses))('over %s, without a replica', (provider, address) => {
  // Over shm:// memory answers, whatever its process does: I/O goes on until the client leaves it for dead.
  const waits = provider !== 'shm'

  it('a server that stands still is waited for, and has what it had', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '128M'], address())
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '128M', folder.path, ['--timeout', '1'])
    await using _client = client
    must('qemu-io', qemuIo(nbd, 'write -P 0x5a 0 100M'))
    for (let round = 1; round <= 2; round++) {
      server.process.kill('SIGSTOP')
      const reading = start(nbd, 'read -P 0x5a 1M 60M')
      const writing = start(nbd, `write -P ${round} 70M 4M`, 'write -P 0x77 100000000 1234')
      await eventually(
        () => (client.stderr.match(/128 MiB of the volume are nowhere else/g) ?? []).length >= round,
      )
      const away = statusIn<Status>(folder.path)
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
      await eventually(
        () => (client.stderr.match(/is back with what it had: 128 MiB/g) ?? []).length === round,
      )
      must('qemu-io', qemuIo(nbd, `read -P ${round} 70M 4M`, 'read -P 0x5a 0 70M'))
    }
    const status = statusIn<Status>(folder.path)
    expect(status.slabs).toMatchObject({ away: 0, mapped: 2, lost: 0 })
    expect(status.servers).toMatchObject([{ state: 'up', slabs: 2 }])
    expect(status.statistics.lostPages).toBe(0)
    expect(status.statistics.lanes.map(({ errors }) => Number(errors))).toEqual(
      status.statistics.lanes.map(() => 0),
    )
    expect((await client.stop('SIGTERM')).status).toBe(0)
    expect(client.stderr).not.toMatch(/I\/O errors/)
  }, 60_000)

  it('a client that stood still so long that its server gave it up finds its memory again', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(
      ['--memory', '64M', '--session-timeout', '1', '--log-level', 'info'],
      address(),
    )
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '64M', folder.path)
    await using _client = client
    must('qemu-io', qemuIo(nbd, 'write -P 0x5a 0 64M'))
    client.process.kill('SIGSTOP')
    await says(server, /session lingers/)
    client.process.kill('SIGCONT')
    must('qemu-io', qemuIo(nbd, 'read -P 0x5a 0 64M'))
    await says(client, /is back with what it had: 64 MiB/)
    must('qemu-io', qemuIo(nbd, 'read -P 0x5a 0 64M', 'write -P 0x11 0 64M', 'read -P 0x11 0 64M'))
    expect(statusIn<Status>(folder.path).slabs).toMatchObject({ away: 0, mapped: 1, lost: 0 })
  }, 60_000)

  it('a server that stays away is given up when its time is over', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '64M'], address())
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '64M', folder.path, ['--reconnect', '1'])
    must('qemu-io', qemuIo(nbd, 'write -P 0x5a 0 1M'))
    server.process.kill('SIGSTOP')
    const reading = start(nbd, 'read -P 0x5a 0 1M')
    expect((await client.ends(40_000)).status).toBe(1)
    if (waits) expect(await reading.ended).toMatch(/read failed|Input\/output error|status 1/)
    expect(client.stderr).toMatch(/64 MiB of the volume are nowhere else and wait for it/)
    expect(client.stderr).toMatch(
      /did not come back within 1 s.*64 MiB of the volume now answer with I\/O errors/,
    )
  }, 60_000)
})

describe('of two replicas', () => {
  it('the server that went last has everything: both stand still, one after the other', async () => {
    using folder = temporaryFolder()
    const servers = [await startServer(['--memory', '64M']), await startServer(['--memory', '64M'])]
    const [first, last] = servers.map(({ program }) => program) as [Program, Program]
    await using _first = first
    await using _last = last
    const more = ['--server', servers[1]?.uri ?? '', '--replicas', '2', '--timeout', '1']
    const { program: client, uri: nbd } = await startServe(servers[0]?.uri ?? '', '64M', folder.path, more)
    await using _client = client
    must('qemu-io', qemuIo(nbd, 'write -P 0x5a 0 16M'))
    first.process.kill('SIGSTOP')
    // Written when the first is gone: what it has is old from here on.
    must('qemu-io', qemuIo(nbd, 'write -P 0x66 0 16M'))
    await says(client, /have a replica less/)
    last.process.kill('SIGSTOP')
    const reading = start(nbd, 'read -P 0x66 0 16M')
    await says(client, /64 MiB of the volume are nowhere else and wait for it/)
    first.process.kill('SIGCONT')
    await says(client, /takes part again, with empty memory/)
    expect(reading.over).toBe(false)
    last.process.kill('SIGCONT')
    expect(await reading.ended).toMatch(/^(?!.*(fail|error)).*status 0$/is)
    await says(client, /64 MiB of the volume repaired/)
    await last.stop('SIGKILL')
    must('qemu-io', qemuIo(nbd, 'read -P 0x66 0 16M', 'read -P 0 16M 48M'))
  }, 60_000)
})
