// A swap-server that is stopped while clients have their pages there, and nowhere else.
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { SwapServerSession } from '@rdmakit/swap-server'
import { describe, expect, it } from 'vitest'
import { controlFault } from '../../control-fault.js'
import { stopProcess } from '../../stop-process.js'
import {
  complete,
  type Program,
  run,
  SWAP_SERVER,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
} from '../helpers/processes.js'

const SERVER = ['--memory', '128M', '--slab-size', '8M']

interface Status {
  slabs: { lost: number; mapped: number; away: number }
  statistics: { lostPages: number }
}

/** Which server has what of the volume. */
interface Servers {
  servers: { uri: string; slabs: number }[]
}

describe.concurrent('swap-server that is stopped', () => {
  it('asks its clients to move, and ends when they have', async () => {
    using folder = temporaryFolder()
    const servers = [await startServer(SERVER), await startServer(SERVER)] as const
    await using _first = servers[0].program
    await using _second = servers[1].program
    const args = ['--server', servers[1].uri, '--refill-rate', '0', '--connections', '2']
    const { program: client, uri } = await startServe(servers[0].uri, '64M', folder.path, args)
    await using _client = client
    await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 0x5a 0 64M', uri])
    const { servers: holders } = await statusIn<Servers>(folder.path)
    const most = holders.toSorted((a, b) => b.slabs - a.slabs)[0]
    const { program: leaving } = servers.find(({ uri: its }) => its === most?.uri) as (typeof servers)[0]
    expect(await leaving.stop()).toEqual({ status: 0, signal: null })
    expect(leaving.stdout).toMatch(/clients are asked to move \d+ MiB to other servers, for 60 s at most/)
    expect(leaving.stdout).not.toMatch(/ended with this server/)
    const { slabs, statistics } = await statusIn<Status>(folder.path)
    expect({ slabs, lost: statistics.lostPages }).toMatchObject({
      slabs: { lost: 0, away: 0, mapped: 8 },
      lost: 0,
    })
    expect(await complete('qemu-io', ['-f', 'raw', '-c', 'read -P 0x5a 0 64M', uri])).not.toMatch(/fail/i)
  })

  it('says what stays, and waits for nobody who cannot move', async () => {
    using folder = temporaryFolder()
    const { program: server, uri: address } = await startServer(SERVER)
    await using _server = server
    const { program: client } = await startServe(address, '16M', folder.path, ['--connections', '2'])
    await using _client = client
    expect(await server.stop()).toEqual({ status: 0, signal: null })
    expect(server.stdout).toMatch(/16 MiB of pid \d+ at .* ended with this server\nstopped by SIGTERM\n$/)
  })

  /** Has a slab, says that it moves it, and does not. */
  async function lyingClient(uri: string) {
    const session = await SwapServerSession.open([uri], { client: 'a client that lies' })
    const asked = new Promise<void>((resolve) =>
      session.onServerRequest({
        activity: (ids) => ids.map(() => 0),
        reclaim: (ids) => {
          resolve()
          return ids
        },
      }),
    )
    await session.allocate(1)
    return { asked, [Symbol.asyncDispose]: () => session.close().catch(() => {}) }
  }

  it('ends at once at the second signal', async () => {
    const { program: server, uri } = await startServer([...SERVER, '--drain', '3600'])
    await using _server = server
    await using client = await lyingClient(uri)
    server.process.kill('SIGTERM')
    await client.asked
    expect(await server.stop('SIGINT')).toEqual({ status: 0, signal: null })
    expect(server.stdout).toMatch(/8 MiB of a client that lies at .* ended with this server/)
  })

  it('waits for --drain and no longer', async () => {
    const { program: server, uri } = await startServer([...SERVER, '--drain', '1'])
    await using _server = server
    await using client = await lyingClient(uri)
    server.process.kill('SIGTERM')
    await client.asked
    expect(await server.ends()).toEqual({ status: 0, signal: null })
    expect(server.stdout).toMatch(/8 MiB of a client that lies/)
  })

  it.each<[string, string[], string[]]>([
    ['with stop --now', [], ['--now']],
    ['with --drain 0', ['--drain', '0'], []],
  ])('asks nobody %s', async (_, options, words) => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer([...SERVER, ...options], undefined, folder.path)
    await using _server = server
    await using _client = await lyingClient(uri)
    const stop = ['env', `RDMAKIT_RUN=${folder.path}`, process.execPath, SWAP_SERVER, 'stop', ...words]
    await complete(stop[0] as string, stop.slice(1))
    expect(await server.ends()).toEqual({ status: 0, signal: null })
    expect(server.stdout).toMatch(/8 MiB of a client that lies at .* ended with this server/)
    expect(server.stderr).toBe('')
  })

  it('is waited for as long as said, and goes on', async () => {
    using folder = temporaryFolder()
    const { program: server, uri } = await startServer(SERVER, undefined, folder.path)
    await using _server = server
    await using client = await lyingClient(uri)
    const stop = ['env', `RDMAKIT_RUN=${folder.path}`, process.execPath, SWAP_SERVER, 'stop', '--wait', '1']
    const stopped = complete(stop[0] as string, stop.slice(1))
    await client.asked
    await expect(stopped).rejects.toThrow(/ended with 1\n.*has not ended within 1 s; it may still be moving/s)
    expect(server.process.exitCode).toBeNull()
  })

  it('ends though its control socket cannot be removed', async () => {
    using folder = temporaryFolder()
    const { program: server } = await startServer(SERVER, undefined, folder.path)
    await using _server = server
    const socket = join(folder.path, `swap-server-${server.process.pid}.sock`)
    rmSync(socket)
    mkdirSync(socket)
    expect(await server.stop()).toEqual({ status: 0, signal: null })
    expect(server.stdout).toMatch(/\nstopped by SIGTERM\n$/)
  })

  it('says so when its end fails', async () => {
    using folder = temporaryFolder()
    const environment = { RDMAKIT_RUN: folder.path, ...controlFault('end') }
    const { program: server } = await startServer(SERVER, undefined, environment)
    await using _server = server
    server.process.kill('SIGUSR2')
    await server.says(/^ends fail$/m)
    expect(await server.stop()).toEqual({ status: 70, signal: null })
    expect(server.stderr).toContain('an end has failed')
  })

  it('takes a --drain that a clock can count', () => {
    const serve = ['--listen', 'iwarp://127.0.0.1:0', '--memory', '16M', '--drain', '86401']
    expect(run(process.execPath, [SWAP_SERVER, ...serve])).toEqual({
      status: 64,
      stdout: '',
      stderr:
        "swap-server: option '--drain <seconds>' argument '86401' is invalid. It is a whole number from 0 to 86400.\n",
    })
  })

  it('is to be named where there are several, and to be there', async () => {
    using folder = temporaryFolder()
    const stop = () => run('env', [`RDMAKIT_RUN=${folder.path}`, process.execPath, SWAP_SERVER, 'stop'])
    expect(stop()).toMatchObject({ status: 69, stderr: 'swap-server: no swap-server is running\n' })
    const servers = [
      await startServer(SERVER, undefined, folder.path),
      await startServer(SERVER, undefined, folder.path),
    ]
    expect(stop().stderr).toMatch(/several swap-servers are running; name one with --pid/)
    const hung = (servers[1] as (typeof servers)[number]).program.process
    await stopProcess(hung)
    expect(stop()).toMatchObject({
      status: 69,
      stderr: expect.stringMatching(
        `^swap-server: swap-server ${hung.pid} does not answer: .*; name one with --pid: `,
      ),
    })
    hung.kill('SIGCONT')
    for (const { program } of servers) await (program as Program).stop()
  })
})
