// 300 silent connections and 300 that send a byte now and then, from one address: no client is locked out, at
// any listening port. Good clients connect one after another, 100 of ours and 30 that are programs of NBD, and the time of
// each is printed. About 15 s.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { RingConnection, RingServer } from '../../../packages/ring-transport/src/index.js'
import { SwapServerSession } from '../../../packages/swap-server/src/index.js'
import { top } from '../../lab/base/paths.js'
import {
  complete,
  endWithProcess,
  NBD_CLIENT,
  Program,
  startServer,
  temporaryFolder,
} from '../helpers/processes.js'

const PEERS = 300
const CLIENTS = 100
const NBD_CLIENTS = 30

/** Something that listens: where, as half-made.py and as a good client say it, and what a good client does there. */
interface Door {
  readonly address: string
  /** good clients that come */
  readonly clients?: number
  readonly come: () => Promise<unknown>
}

function folder(): string {
  const made = temporaryFolder()
  onTestFinished(() => made[Symbol.dispose]())
  return made.path
}

const tcp = (uri: string) => uri.replace(/^\w+:\/\//, '')
const packets = (uri: string) => uri.replace('shm://', 'packet:')

async function ring(uri: string, address: (uri: string) => string): Promise<Door> {
  const server = await RingServer.listen(uri, { onConnection: (one) => one.handle((bytes) => bytes.copy()) })
  onTestFinished(() => server.close({ drain: false }))
  const come = async () => {
    const connection = await RingConnection.connect(server.uri)
    expect(await connection.request(new Uint8Array([7]))).toEqual(new Uint8Array([7]))
    await connection.close()
  }
  return { address: address(server.uri), come }
}

async function swapServer(listen: string, address: (uri: string) => string): Promise<Door> {
  const { program, uri } = await startServer(['--memory', '64M'], listen, folder())
  onTestFinished(() => program[Symbol.asyncDispose]())
  const come = async () => {
    const session = await SwapServerSession.open([uri])
    await session.close()
  }
  return { address: address(uri), come }
}

async function nbd(listen: (folder: string) => string[], address: (uri: string) => string): Promise<Door> {
  const run = folder()
  const { program: server, uri } = await startServer(['--memory', '64M'], undefined, run)
  onTestFinished(() => server[Symbol.asyncDispose]())
  const args = ['serve', '--server', uri, '--size', '8M', ...listen(run)]
  const program = new Program(NBD_CLIENT, args, { RDMAKIT_RUN: run })
  onTestFinished(() => program[Symbol.asyncDispose]())
  const [, served] = (await program.prints(/^ready (\S+)$/m)) as unknown as [string, string]
  const come = () => complete('nbdinfo', ['--size', served])
  return { address: address(served), clients: NBD_CLIENTS, come }
}

const DOORS: [string, () => Promise<Door>][] = [
  ['a ring over iwarp', () => ring('iwarp://127.0.0.1:0', tcp)],
  ['a ring over shm', () => ring(`shm://${join(folder(), 'ring.sock')}`, packets)],
  ['swap-server over iwarp', () => swapServer('iwarp://127.0.0.1:0', tcp)],
  ['swap-server over shm', () => swapServer(`shm://${join(folder(), 'server.sock')}`, packets)],
  [
    'NBD over a Unix socket',
    () =>
      nbd(
        (run) => ['--unix', join(run, 'nbd.sock')],
        (uri) => `stream:${new URL(uri).searchParams.get('socket')}`,
      ),
  ],
  [
    'NBD over TCP',
    () =>
      nbd(
        () => ['--tcp', '127.0.0.1:0'],
        (uri) => new URL(uri).host,
      ),
  ],
]

/** Ends with the test. Resolves when all have been there. */
async function crowd(address: string): Promise<ChildProcess> {
  const peers = endWithProcess(
    spawn('python3', [join(top, 'test/e2e/helpers/half-made.py'), address, String(PEERS)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    }),
  )
  onTestFinished(() => void peers.kill('SIGKILL'))
  const [first] = await Promise.race([once(peers.stdout, 'data'), once(peers, 'exit')])
  expect(String(first)).toContain('there')
  return peers
}

describe(`beside ${PEERS} silent and ${PEERS} slow half-made connections`, () => {
  it.each(DOORS)('clients come to %s', async (name, open) => {
    const { address, clients = CLIENTS, come } = await open()
    const peers = await crowd(address)
    const times: number[] = []
    for (let i = 0; i < clients; i++) {
      const begin = performance.now()
      await come()
      times.push(performance.now() - begin)
    }
    times.sort((a, b) => a - b)
    expect(times).toHaveLength(clients)
    expect(peers.exitCode).toBeNull()
    const [median, most] = [times[clients / 2], times.at(-1)] as [number, number]
    console.log(`${name}: in ${Math.round(median)} ms, ${Math.round(most)} ms at most`)
  })
})
