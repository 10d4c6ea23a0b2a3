// What breaks, and what the others see of it.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { describe, expect, it } from 'vitest'
import { must, startServe, startServer, temporaryFolder } from './processes.js'

function runFio(uri: string, seconds: number) {
  const child = spawn(
    'fio',
    [
      '--name=w',
      '--ioengine=nbd',
      `--uri=${uri}`,
      '--rw=randwrite',
      '--bs=4k',
      '--iodepth=16',
      '--size=64m',
      '--time_based',
      `--runtime=${seconds}`,
      '--status-interval=1',
    ],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  )
  const started = new Promise<void>((resolve) => child.stdout.once('data', () => resolve()))
  const ended = new Promise<{ status: number | null; at: number }>((resolve) =>
    child.once('close', (status) => resolve({ status, at: Date.now() })),
  )
  return { child, started, ended }
}

describe('a server that is killed', () => {
  it('gives I/O errors within 5 s while fio writes; the client ends and its socket is gone', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '128M'])
    const { program: client, socket, uri: nbd } = await startServe(uri, '64M', folder.path)
    const fio = runFio(nbd, 60)
    // fio prints its first status when it has written for a second.
    await fio.started
    const killed = Date.now()
    await server.stop('SIGKILL')
    const { status, at } = await fio.ended
    expect(status).not.toBe(0)
    expect(at - killed).toBeLessThan(5_000)
    const end = await client.ends(5_000)
    expect(end.status).toBe(1)
    expect(client.stderr).toMatch(/lost iwarp:\/\/.*64 MiB of the volume/)
    expect(existsSync(socket)).toBe(false)
  })

  it('that is stopped in good order tells its client at once', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '128M'])
    const { program: client } = await startServe(uri, '64M', folder.path)
    expect((await server.stop('SIGTERM')).status).toBe(0)
    expect((await client.ends(5_000)).status).toBe(1)
  })
})

describe('a client that is killed', () => {
  it('leaves its slabs to the next one, zeroed', async () => {
    using folder = temporaryFolder()
    await using started = await (async () => {
      const { program, uri } = await startServer(['--memory', '64M'])
      return Object.assign(program, { uri })
    })()
    // Else its slabs would be kept for it for a minute.
    const first = await startServe(started.uri, '64M', folder.path, ['--reconnect', '0'])
    must('qemu-io', ['-f', 'raw', '-c', 'write -P 0xee 0 64M', first.uri])
    await first.program.stop('SIGKILL')
    // The server frees the slabs when it sees the connection break; until then it is too small.
    let second: Awaited<ReturnType<typeof startServe>> | undefined
    const deadline = Date.now() + 10_000
    while (second === undefined) {
      try {
        second = await startServe(started.uri, '64M', folder.path)
      } catch (failure) {
        if (Date.now() > deadline || !/too small/.test(String(failure))) throw failure
      }
    }
    await using client = second.program
    // One byte makes its page a written one: the rest of it comes from the server's memory.
    const out = must('qemu-io', [
      '-f',
      'raw',
      ...['write -P 0x01 8192 1', 'read -P 0 8193 4095', 'read -P 0 0 8192', 'read -P 0 12288 60M'].flatMap(
        (command) => ['-c', command],
      ),
      second.uri,
    ])
    expect(out).not.toMatch(/fail|error/i)
    expect((await client.stop('SIGTERM')).status).toBe(0)
    expect(existsSync(second.socket)).toBe(false)
  })
})

/** Connects to a Unix socket and resolves with how long the server kept the connection. */
function keptFor(path: string, talk: (socket: Socket) => void): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = connect(path)
    const started = Date.now()
    socket.setTimeout(25_000, () => reject(new Error('the server keeps the connection')))
    socket.on('connect', () => talk(socket))
    socket.on('data', () => {})
    socket.on('error', () => {})
    socket.on('close', () => {
      socket.setTimeout(0)
      resolve(Date.now() - started)
    })
  })
}

const CLIENT_FLAGS = Buffer.from([0, 0, 0, 3])

function option(code: number, length: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(16)
  header.write('IHAVEOPT', 'latin1')
  header.writeUInt32BE(code, 8)
  header.writeUInt32BE(length, 12)
  return Buffer.concat([header, payload])
}

describe('hostile NBD clients', () => {
  it('lose their own connection within its time limit; the others go on', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(['--memory', '64M'])
    await using _server = server
    const { program: client, socket, uri: nbd } = await startServe(uri, '64M', folder.path)
    await using _client = client
    const good = runFio(nbd, 4)
    await good.started
    const longName = Buffer.alloc(4 + 5000 + 2)
    longName.writeUInt32BE(5000)
    const attacks: Record<string, (socket: Socket) => void> = {
      'random bytes': (s) => s.write(Buffer.from(Array.from({ length: 4096 }, (_, i) => (i * 7919) & 0xff))),
      'option of 4 GiB': (s) => s.write(Buffer.concat([CLIENT_FLAGS, option(7, 0xffffffff)])),
      'negative size': (s) => s.write(Buffer.concat([CLIENT_FLAGS, option(7, 0x80000000)])),
      'unknown client flags': (s) => s.write(Buffer.from([0xff, 0xff, 0xff, 0xff])),
      'half a header and silence': (s) => s.write(Buffer.from('IHAVE')),
      silence: () => {},
    }
    const results = await Promise.all(
      Object.entries(attacks).map(async ([name, talk]) => [name, await keptFor(socket, talk)] as const),
    )
    for (const [name, ms] of results) expect(ms, name).toBeLessThan(15_000)
    // A name of 5,000 bytes is refused; whether the connection goes on is the server's choice, but it
    // must end within the handshake's limit.
    const named = await keptFor(socket, (s) =>
      s.write(Buffer.concat([CLIENT_FLAGS, option(7, longName.length, longName)])),
    )
    expect(named).toBeLessThan(15_000)
    expect((await good.ended).status).toBe(0)
    must('nbdinfo', ['--json', nbd])
  }, 60_000)
})
