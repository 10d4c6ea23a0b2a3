// Failures, and how the others see them.
import { existsSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { Volume } from '@rdmakit/nbd-client'
import { SwapServer } from '@rdmakit/swap-server'
import { describe, expect, it } from 'vitest'
import { VerifyingFio } from '../helpers/fio.js'
import {
  complete,
  PATIENCE_MS,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const SERVER = ['--memory', '16M', '--slab-size', '8M']
const SIZE = '16M'

describe.concurrent('a server that is killed', () => {
  it.each([
    // No time-out ends it, and no request waits for memory that cannot come back.
    ['on this host gives I/O errors at once', 'shm', '3600'],
    // A refusal may come from another host, in front of it.
    ['elsewhere gives I/O errors when its time is over', 'iwarp', '1'],
  ])(
    '%s while fio writes; the client ends and its socket is gone',
    async (_, provider, reconnect) => {
      using folder = temporaryFolder()
      const listen = provider === 'shm' ? `shm://${join(folder.path, 'server.sock')}` : undefined
      const { program: server, uri } = await startServer(SERVER, listen)
      await using _server = server
      const patient = ['--connections', '2', '--timeout', '600', '--reconnect', reconnect]
      const { program: client, socket, uri: nbd } = await startServe(uri, SIZE, folder.path, patient)
      await using _client = client
      await using fio = new VerifyingFio(nbd, '16m')
      const written = async () => {
        const { statistics } = await statusIn<{ statistics: { lanes: { writes: number }[] } }>(folder.path)
        return statistics.lanes.reduce((sum, { writes }) => sum + writes, 0)
      }
      await until(written, (pages) => pages > 1000)
      await server.stop('SIGKILL')
      expect(await fio.fails()).not.toBe(0)
      const end = await client.ends()
      expect(end.status).toBe(1)
      expect(client.stderr).toMatch(/lost (iwarp|shm):\/\/.*16 MiB of the volume now answer with I\/O errors/)
      expect(existsSync(socket)).toBe(false)
    },
    120_000,
  )

  it('that is stopped in good order tells its client at once', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(SERVER)
    const { program: client } = await startServe(uri, SIZE, folder.path, ['--reconnect', '3600'])
    await using _client = client
    expect((await server.stop('SIGTERM')).status).toBe(0)
    expect((await client.ends()).status).toBe(1)
    // It said so itself: a connection that ends, or is refused, would be waited for.
    expect(client.stderr).toMatch(
      /lost iwarp:\/\/\S+: the server has given up its memory: the server ends; 16 MiB of the volume now answer/,
    )
  }, 120_000)
})

describe.concurrent('a client that is killed', () => {
  it('leaves its slabs to the next one, zeroed', async () => {
    using folder = temporaryFolder()
    const { program, uri } = await startServer(SERVER, undefined, folder.path)
    await using _server = program
    // Else its slabs would be kept for it for a minute.
    const first = await startServe(uri, SIZE, folder.path, ['--reconnect', '0'])
    await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 0xee 0 16M', first.uri])
    const free = async () => (await statusIn<{ freeSlabs: number }>(folder.path, 'swap-server')).freeSlabs
    expect(await free()).toBe(0)
    await first.program.stop('SIGKILL')
    // The server frees the slabs when it sees the connection break.
    await until(free, (slabs) => slabs === 2)
    const second = await startServe(uri, SIZE, folder.path)
    await using client = second.program
    // One byte makes its page a written one: the rest of it comes from the server's memory.
    const out = await complete('qemu-io', [
      '-f',
      'raw',
      ...['write -P 0x01 8192 1', 'read -P 0 8193 4095', 'read -P 0 0 8192', 'read -P 0 12288 12M'].flatMap(
        (command) => ['-c', command],
      ),
      second.uri,
    ])
    expect(out).not.toMatch(/fail|error/i)
    expect((await client.stop('SIGTERM')).status).toBe(0)
    expect(existsSync(second.socket)).toBe(false)
  }, 120_000)
})

/** Connects to a Unix socket and resolves when the server has ended the connection. */
function thrownOut(path: string, talk: (socket: Socket) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect(path)
    socket.setTimeout(PATIENCE_MS, () => reject(new Error('the server keeps the connection')))
    socket.on('connect', () => talk(socket))
    socket.on('data', () => {})
    socket.on('error', () => {})
    socket.on('close', () => {
      socket.setTimeout(0)
      resolve()
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

describe.concurrent('hostile NBD clients', () => {
  it('lose their own connection within its time limit; the others go on', async () => {
    using folder = temporaryFolder()
    const server = new SwapServer({ memory: 16 * 2 ** 20, slabSize: 8 * 2 ** 20 })
    await using _server = { [Symbol.asyncDispose]: () => server.close() }
    const uri = await server.listen(`shm://${join(folder.path, 'server.sock')}`)
    // As nbd-client serve, whose limit is 10 s. This one too is enough for a good client on a slow machine.
    const engine = { handshakeTimeout: 2_000 }
    await using volume = await Volume.open({ servers: [[uri]], size: 16 * 2 ** 20, lanes: 2, engine })
    const socket = join(folder.path, 'nbd.sock')
    volume.engine.listenUnix(socket)
    const nbd = `nbd+unix:///?socket=${socket}`
    await using good = new VerifyingFio(nbd, '16m', 500)
    const written = () =>
      volume.engine.statistics().lanes.reduce((sum, { writes }) => sum + Number(writes), 0)
    await until(written, (pages) => pages > 0)
    const longName = Buffer.alloc(4 + 5000 + 2)
    longName.writeUInt32BE(5000)
    const attacks: Record<string, (socket: Socket) => void> = {
      'random bytes': (s) => s.write(Buffer.from(Array.from({ length: 4096 }, (_, i) => (i * 7919) & 0xff))),
      'option of 4 GiB': (s) => s.write(Buffer.concat([CLIENT_FLAGS, option(7, 0xffffffff)])),
      'negative size': (s) => s.write(Buffer.concat([CLIENT_FLAGS, option(7, 0x80000000)])),
      'unknown client flags': (s) => s.write(Buffer.from([0xff, 0xff, 0xff, 0xff])),
      'half a header and silence': (s) => s.write(Buffer.from('IHAVE')),
      silence: () => {},
      // Refused; whether the connection goes on is the server's choice, but it must end within the handshake's limit.
      'a name of 5,000 bytes': (s) =>
        s.write(Buffer.concat([CLIENT_FLAGS, option(7, longName.length, longName)])),
    }
    await Promise.all(Object.values(attacks).map((talk) => thrownOut(socket, talk)))
    // All were refused: the silent ones by the time limit, for nothing else ends them.
    await until(
      () => volume.engine.statistics().handshakesRefused,
      (refused) => refused === Object.keys(attacks).length,
    )
    const before = written()
    await until(written, (pages) => pages > before)
    await good.end()
    const { exports } = JSON.parse(await complete('nbdinfo', ['--json', nbd]))
    expect(exports).toMatchObject([{ 'export-size': 16 * 2 ** 20 }])
    expect(volume.engine.statistics().handshakesRefused).toBe(Object.keys(attacks).length)
  }, 120_000)
})
