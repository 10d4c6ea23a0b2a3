// examples/rping with itself; the lab has it talk to librdmacm's.
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import { PATIENCE_MS, Program, run, temporaryFolder } from '../helpers/processes.js'

const RPING = join(top, 'examples/dist/rping/main.js')

async function startServer(listen: string, ...args: string[]) {
  const program = new Program(RPING, ['-s', '-a', listen, ...args])
  const [, uri] = await program.prints(/^listening (\S+)$/m)
  return { program, uri: uri as string }
}

const client = (uri: string, ...args: string[]) =>
  run(process.execPath, [RPING, '-c', '-a', uri, ...args], PATIENCE_MS)

describe.each(['iwarp', 'shm'])('rping over %s', (scheme) => {
  const listenAt = (folder: string) =>
    scheme === 'shm' ? `shm://${join(folder, 'rping.sock')}` : 'iwarp://127.0.0.1:0'

  it('brings 20 pings of 64 bytes back, and both ends end well', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(listenAt(folder.path), '-v')
    await using _ = server
    const { status, stdout, stderr } = client(uri, '-C', '20', '-V', '-v')
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout.match(/^ping data: rdma-ping-\d+: /gm)).toHaveLength(20)
    expect(await server.ends()).toMatchObject({ status: 0 })
    expect(server.stdout.match(/^server ping data: rdma-ping-\d+: /gm)).toHaveLength(20)
  })

  describe('brings 20 pings back', () => {
    const folder = temporaryFolder()
    let server: Awaited<ReturnType<typeof startServer>>
    beforeAll(async () => {
      server = await startServer(listenAt(folder.path), '-P')
    })
    afterAll(async () => {
      await server.program.stop('SIGKILL')
      folder[Symbol.dispose]()
    })

    it.each([26, 65_535])('of %i bytes', (size) => {
      const { status, stdout, stderr } = client(server.uri, '-C', '20', '-S', String(size), '-V', '-v')
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
      expect(stdout.match(/^ping data: rdma-ping-\d+: /gm)).toHaveLength(20)
    })
  })

  it('serves one client after another with -P, until SIGTERM', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(listenAt(folder.path), '-P', '-S', '64')
    await using _ = server
    expect(client(uri, '-C', '3', '-V').status).toBe(0)
    // A ping that is too long costs only its own client the connection.
    expect(client(uri, '-C', '3', '-S', '65')).toMatchObject({
      status: 1,
      stderr: 'rping: the peer disconnected\n',
    })
    expect(client(uri, '-C', '3', '-V').status).toBe(0)
    expect(await server.stop()).toMatchObject({ status: 0 })
    expect(server.stderr).toMatch(/^rping: connection from .*: a ping of 65 bytes, 64 at most \(-S\)\n$/)
  })

  it('says in one line that nobody listens', () => {
    using folder = temporaryFolder()
    const uri = listenAt(folder.path).replace(/:0$/, ':1')
    const { status, stderr } = client(uri, '-C', '1')
    expect(status).toBe(1)
    expect(stderr).toMatch(/^rping: .*nothing listens.*\n$/)
  })
})

it('rping wants to be one end, not both or none', () => {
  for (const ends of [['-s', '-c'], []]) {
    const { status, stderr } = run(process.execPath, [RPING, ...ends], PATIENCE_MS)
    expect(status).toBe(1)
    expect(stderr).toMatch(/either -s or -c/)
  }
})
