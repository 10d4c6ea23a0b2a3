// The servers for fio, all of one size: ours over each fabric, nbdkit's memory plugin over each socket, and
// qemu-nbd over a Unix socket with a file in memory, and with nothing behind it.
import { truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Build } from '../against/build.js'
import { Child, run } from '../core/child.js'
import { freePort } from '../core/free-port.js'
import { TemporaryFolder } from '../core/leftovers.js'
import type { Workload } from './workloads.js'

export const SIZE = '256M'
const BYTES = 256 * 2 ** 20
/** A tmpfs on every Linux: where POSIX shared memory is. */
const TMPFS = '/dev/shm'

export const NAMES = [
  'shm',
  'shm, no checksum',
  'iwarp',
  'iwarp, no checksum',
  'nbdkit',
  'nbdkit, TCP',
  'qemu-nbd, tmpfs',
  'qemu-nbd, null-co',
] as const
export type Name = (typeof NAMES)[number]

export interface Target extends AsyncDisposable {
  /** of the NBD export */
  readonly uri: string
  /** Pages that have been spared the network: zeros, and those never written. None, or the figures are no good. */
  pagesSpared(): Promise<number>
}

export const isPeer = (name: Name): boolean => name.startsWith('nbdkit') || name.startsWith('qemu-nbd')

/** The cost of a checksum is measured in a few; and a server that stores nothing cannot be verified. */
export const runs = (name: Name, { quick, verifies }: Workload): boolean =>
  (quick || !name.endsWith('no checksum')) && !(verifies === true && name === 'qemu-nbd, null-co')

/** @param folder of its own: sockets, and where `nbd-client status` finds the client */
export function open(name: Name, build: Build, folder: string): Promise<Target> {
  const checksums = name.endsWith('no checksum') ? ['--no-checksum'] : []
  if (name.startsWith('shm')) return openOurs(build, `shm://${join(folder, 'shm.sock')}`, checksums, folder)
  if (name.startsWith('iwarp')) return openOurs(build, 'iwarp://127.0.0.1:0', checksums, folder)
  if (name === 'qemu-nbd, null-co') return openQemu(['--image-opts', `driver=null-co,size=${BYTES}`], folder)
  if (name === 'qemu-nbd, tmpfs') return openQemuFile(folder)
  return openNbdkit(name === 'nbdkit, TCP', folder)
}

async function openOurs(
  build: Build,
  listen: string,
  options: readonly string[],
  folder: string,
): Promise<Target> {
  const cli = (name: 'swap-server' | 'nbd-client') => join(build.root, 'packages', name, 'dist/cli.js')
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
  const close = async () => {
    await client[Symbol.asyncDispose]()
    await server[Symbol.asyncDispose]()
  }
  const [, uri = ''] = await client.prints(/^ready (\S+)$/m).catch(async (failure) => {
    await close()
    throw failure
  })
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
    [Symbol.asyncDispose]: close,
  }
}

async function openNbdkit(tcp: boolean, folder: string): Promise<Target> {
  const pidFile = join(folder, 'nbdkit.pid')
  const socket = join(folder, 'nbdkit.sock')
  // nbdkit has no "port 0".
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

async function openQemuFile(folder: string): Promise<Target> {
  const memory = new TemporaryFolder(TMPFS)
  try {
    const file = join(memory.path, 'disk')
    writeFileSync(file, '')
    truncateSync(file, BYTES)
    const target = await openQemu(['--format=raw', file], folder)
    const close = async () => {
      await target[Symbol.asyncDispose]()
      memory[Symbol.dispose]()
    }
    return { ...target, [Symbol.asyncDispose]: close }
  } catch (failure) {
    memory[Symbol.dispose]()
    throw failure
  }
}

/** @param image what it serves, as its arguments */
async function openQemu(image: readonly string[], folder: string): Promise<Target> {
  const pidFile = join(folder, 'qemu-nbd.pid')
  const socket = join(folder, 'qemu-nbd.sock')
  const options = ['--persistent', '--shared=0', `--socket=${socket}`, `--pid-file=${pidFile}`]
  const child = new Child('qemu-nbd', [...options, ...image])
  // As nbdkit's, its pid file comes when it listens.
  await child.leaves(pidFile)
  return {
    uri: `nbd+unix:///?socket=${socket}`,
    pagesSpared: async () => 0,
    [Symbol.asyncDispose]: () => child[Symbol.asyncDispose](),
  }
}
