// A volume with a local backup: the only server is killed while clients verify what they wrote.
import { randomFillSync } from 'node:crypto'
import { chmodSync, existsSync, lstatSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { OWN_LOOPBACK } from '../../own-loopback.js'
import {
  complete,
  NBD_CLIENT,
  Program,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

interface Status {
  slabs: Record<'mapped' | 'degraded' | 'refilling' | 'backup' | 'lost', number>
  statistics: {
    lostPages: number
    lanes: { errors: number }[]
    backup: { working: boolean; stalePages: number; queuedPages: number; bytesWritten: number } | null
  }
}

const SERVER = ['--memory', '24M', '--slab-size', '4M']
const SIZE = 8 * 2 ** 20

function randomFile(path: string): string {
  writeFileSync(path, randomFillSync(Buffer.alloc(SIZE)))
  return path
}

const compare = (source: string, uri: string) =>
  complete('qemu-img', ['compare', '-f', 'raw', '-F', 'raw', source, uri])

// At the same time: a server that has failed is called every 2 s.
describe.concurrent.each(['iwarp', 'shm'])('a volume with one replica and a backup over %s', (provider) => {
  const address = (folder: string) =>
    provider === 'shm' ? `shm://${join(folder, 'server.sock')}` : `iwarp://${OWN_LOOPBACK}:0`

  it('--ack backup: loses nothing with its only server, goes on, and is refilled when it comes back', async () => {
    using folder = temporaryFolder()
    const first = await startServer(SERVER, address(folder.path))
    await using _first = first.program
    const file = join(folder.path, 'backup')
    const args = ['--connections', '2', '--backup', file, '--ack', 'backup', '--refill-rate', '0']
    const client = await startServe(first.uri, '8M', folder.path, args)
    await using _client = client.program
    const status = () => statusIn<Status>(folder.path)
    // With its header behind the volume.
    expect(statSync(file).size).toBe(SIZE + 4096)
    expect(statSync(file).mode & 0o777).toBe(0o600)
    const source = randomFile(join(folder.path, 'source'))
    await complete('nbdcopy', [source, client.uri])
    expect((await status()).statistics.backup).toMatchObject({ working: true, stalePages: 0 })
    await first.program.stop('SIGKILL')
    await until(status, ({ slabs }) => slabs.backup === 2)
    await compare(source, client.uri)
    const other = randomFile(join(folder.path, 'other'))
    await complete('nbdcopy', [other, client.uri])
    await compare(other, client.uri)
    // Its successor listens at the same address, with empty memory.
    const again = await startServer(SERVER, first.uri)
    await using _again = again.program
    await until(status, ({ slabs }) => slabs.mapped === 2)
    await compare(other, client.uri)
    const after = await status()
    expect(after.statistics.lostPages).toBe(0)
    for (const lane of after.statistics.lanes) expect(lane.errors).toBe(0)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
    expect(client.program.stderr).toMatch(/lost \S+: .*8 MiB of the volume are read from the backup/)
    expect(client.program.stderr).toMatch(/of the volume repaired/)
  }, 120_000)

  it('--ack all: what the file has been given time for is right after the loss of the server', async () => {
    using folder = temporaryFolder()
    const server = await startServer(SERVER, address(folder.path))
    await using _server = server.program
    const args = ['--connections', '2', '--backup', join(folder.path, 'backup'), '--backup-queue', '1M']
    const client = await startServe(server.uri, '8M', folder.path, args)
    await using _client = client.program
    const status = () => statusIn<Status>(folder.path)
    const source = randomFile(join(folder.path, 'source'))
    await complete('nbdcopy', [source, client.uri])
    await until(status, ({ statistics: { backup } }) => backup?.stalePages === 0 && backup.queuedPages === 0)
    await server.program.stop('SIGKILL')
    await compare(source, client.uri)
    expect((await client.program.stop('SIGTERM')).status).toBe(0)
  }, 120_000)
})

describe('what others have access to', () => {
  let server: Program
  let uri: string
  beforeAll(async () => {
    ;({ program: server, uri } = await startServer(SERVER))
  })
  afterAll(() => server.stop())

  it.each([
    ['a file that others can write', 0o666, /--backup .* is open to others \(mode 666\); run chmod 600/],
    ['a file that others can read', 0o644, /--backup .* is open to others \(mode 644\); run chmod 600/],
    ['a symbolic link', undefined, /--backup .* is a symbolic link; name the file that it leads to/],
  ])('%s is no backup, and stays as it was', async (_, mode, message) => {
    using folder = temporaryFolder()
    const [file, elsewhere] = [join(folder.path, 'backup'), join(folder.path, 'elsewhere')]
    if (mode === undefined) symlinkSync(elsewhere, file)
    else {
      writeFileSync(file, '')
      chmodSync(file, mode)
    }
    const socket = join(folder.path, 'nbd.sock')
    const args = ['serve', '--server', uri, '--size', '8M', '--unix', socket, '--backup', file]
    await using client = new Program(NBD_CLIENT, args, { RDMAKIT_RUN: folder.path })
    expect((await client.ends()).status).toBe(77)
    expect(client.stderr).toMatch(message)
    expect(existsSync(socket)).toBe(false)
    expect(existsSync(elsewhere)).toBe(false)
    expect(lstatSync(file).size).toBe(mode === undefined ? elsewhere.length : 0)
  })
})

describe('what is refused', () => {
  let server: Program
  let uri: string
  beforeAll(async () => {
    ;({ program: server, uri } = await startServer(SERVER))
  })
  afterAll(() => server.stop())

  it.each([
    ['--ack backup without a backup', ['--ack', 'backup'], /need --backup <file>/],
    ['a queue without a backup', ['--backup-queue', '1M'], /need --backup <file>/],
    ['a file of another size', ['--backup', 'FOLDER/small'], /exists and has 5 bytes/],
    ['something that is no file', ['--backup', '/dev/null'], /neither a regular file nor a block device/],
  ])('%s', async (_, args, message) => {
    using folder = temporaryFolder()
    writeFileSync(join(folder.path, 'small'), 'small')
    const given = args.map((each) => each.replace('FOLDER', folder.path))
    const socket = join(folder.path, 'nbd.sock')
    const client = new Program(
      NBD_CLIENT,
      ['serve', '--server', uri, '--size', '8M', '--unix', socket, ...given],
      { RDMAKIT_RUN: folder.path },
    )
    await using _client = client
    expect((await client.ends()).status).toBe(64)
    expect(client.stderr).toMatch(message)
    expect(existsSync(socket)).toBe(false)
  })
})
