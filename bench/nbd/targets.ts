// What fio talks to: ours over each fabric, nbdkit's memory plugin over each socket, all of one size.
import { execFile } from 'node:child_process'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Child } from '../child.js'

const run = promisify(execFile)

export const SIZE = '256M'

export const NAMES = [
  'shm',
  'shm, no checksum',
  'iwarp',
  'iwarp, no checksum',
  'nbdkit',
  'nbdkit, TCP',
] as const
export type Name = (typeof NAMES)[number]

export interface Target extends AsyncDisposable {
  /** of the NBD export */
  readonly uri: string
  /** Pages that have been spared the network: zeros, and those never written. None, or the figures are no good. */
  pagesSpared(): Promise<number>
}

const cli = (name: string) => fileURLToPath(new URL(`../../../packages/${name}/dist/cli.js`, import.meta.url))

/** @param folder of its own: sockets, and where `nbd-client status` finds the client */
export function open(name: Name, folder: string): Promise<Target> {
  const checksums = name.endsWith('no checksum') ? ['--no-checksum'] : []
  if (name.startsWith('shm')) return openOurs(`shm://${join(folder, 'shm.sock')}`, checksums, folder)
  if (name.startsWith('iwarp')) return openOurs('iwarp://127.0.0.1:0', checksums, folder)
  return openNbdkit(name === 'nbdkit, TCP', folder)
}

async function openOurs(listen: string, options: readonly string[], folder: string): Promise<Target> {
  const environment = { RDMAKIT_RUN: folder }
  const server = new Child(
    process.execPath,
    [cli('swap-server'), '--listen', listen, '--memory', SIZE],
    environment,
  )
  const [, at = ''] = await server.prints(/^listening (\S+)$/m)
  const socket = join(folder, 'nbd.sock')
  const serve = ['serve', '--server', at, '--size', SIZE, '--unix', socket, ...options]
  const client = new Child(process.execPath, [cli('nbd-client'), ...serve], environment)
  const [, uri = ''] = await client.prints(/^ready (\S+)$/m)
  return {
    uri,
    async pagesSpared() {
      const { stdout } = await run(process.execPath, [cli('nbd-client'), 'status', '--json'], {
        env: { ...process.env, ...environment },
        timeout: 20_000,
      })
      let pages = 0
      for (const { zeroPages, pagesReadWithoutNetwork } of JSON.parse(stdout)[0].statistics.lanes)
        pages += zeroPages + pagesReadWithoutNetwork
      return pages
    },
    async [Symbol.asyncDispose]() {
      await client[Symbol.asyncDispose]()
      await server[Symbol.asyncDispose]()
    },
  }
}

async function openNbdkit(tcp: boolean, folder: string): Promise<Target> {
  const pidFile = join(folder, 'nbdkit.pid')
  const socket = join(folder, 'nbdkit.sock')
  const port = tcp ? await freePort() : 0
  const listen = tcp ? ['-i', '127.0.0.1', '-p', String(port)] : ['-U', socket]
  const child = new Child('nbdkit', ['-f', '-P', pidFile, ...listen, 'memory', SIZE])
  // Its pid file comes when it listens.
  await child.leaves(pidFile)
  return {
    uri: tcp ? `nbd://127.0.0.1:${port}` : `nbd+unix:///?socket=${socket}`,
    pagesSpared: async () => 0,
    [Symbol.asyncDispose]: () => child[Symbol.asyncDispose](),
  }
}

/** nbdkit has no "port 0". */
function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address()
      const port = typeof address === 'object' && address !== null ? address.port : 0
      probe.close(() => resolve(port))
    })
  })
}
