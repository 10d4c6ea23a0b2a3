import { join } from 'node:path'
import { guestScripts } from '../base/paths.js'
import type { Command, RunningProcess, Shell } from '../base/shell.js'
import type { LabParts } from '../machine/lab-parts.js'
import type { SwapPath } from './swap-path.js'

const attachDeadlineMs = 120_000
const detachDeadlineMs = 120_000 // swapoff reads back whatever is still out there.

/** The two programs of a swap service, and what they print once they are ready. */
export interface SwapService {
  serve: Command
  listening: RegExp
  /** Attaches the device, makes it swap space and swaps on it; SIGTERM undoes all three. */
  attach: Command
  attached: RegExp
}

/** This project's own: a page server in one place, a block device on its memory in the other. */
export function rdmakitSwap(uri: string, memory: string, size: string, device = '/dev/nbd0'): SwapService {
  const front = device.startsWith('/dev/ublk') ? ['--front', 'ublk'] : []
  return {
    serve: [
      ...['packages/swap-server/dist/cli.js', '--listen', uri, '--memory', memory],
      ...['--log-level', 'info'],
    ],
    listening: /^listening (\S+)/,
    attach: [
      ...['packages/nbd-client/dist/cli.js', 'attach', '--server', uri],
      ...['--size', size, '--device', device, '--swap', ...front],
    ],
    attached: /^attached (\S+)/,
  }
}

/** Loads the kernel's driver of the device that {@link rdmakitSwap} is to make there. @returns the device */
export async function loadDriver(shell: Shell, { modules }: LabParts, ublk: boolean): Promise<string> {
  await shell.run(
    ublk ? ['sh', join(guestScripts, 'ublk.sh'), modules.ublk] : ['sh', join(guestScripts, 'nbd.sh')],
  )
  return ublk ? '/dev/ublkb0' : '/dev/nbd0'
}

/** Remote swap that is on: a server process in one shell, a client process in another. */
export class RemoteSwap implements AsyncDisposable {
  private constructor(
    readonly server: RunningProcess,
    readonly client: RunningProcess,
  ) {}

  /** Starts the server, then attaches the client. The two shells may be the same one. */
  static async attach(
    server: Shell,
    client: Shell,
    service: SwapService,
    clientEnvironment: Readonly<Record<string, string>> = {},
  ): Promise<RemoteSwap> {
    const serving = server.start(service.serve)
    try {
      await serving.waitForLine(service.listening, attachDeadlineMs)
      const attaching = client.start(service.attach, { env: clientEnvironment })
      try {
        await attaching.waitForLine(service.attached, attachDeadlineMs)
      } catch (error) {
        await attaching.stop().catch(() => {})
        throw error
      }
      return new RemoteSwap(serving, attaching)
    } catch (error) {
      await serving.stop().catch(() => {})
      throw error
    }
  }

  /** Takes the swap off, then stops the server. Throws when either did not end as it should. */
  async detach(): Promise<void> {
    const client = await this.client.stop(detachDeadlineMs)
    const server = await this.server.stop()
    for (const [name, end] of Object.entries({ client, server })) {
      if (end.status !== 0)
        throw new Error(
          `the ${name} ended with ${end.status ?? end.signal}\nclient: ${client.stderr}\nserver: ${server.stderr}`,
        )
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.detach()
  }
}

/** swap-server's memory comes in slabs; this is their default. */
const slabBytes = 64 * 1024 * 1024

/** This project's swap. nbd.sh must have run in the client, or ublk.sh. */
function rdmakitPath(scheme: 'rdma' | 'iwarp', front: 'nbd' | 'ublk'): SwapPath {
  const device = front === 'nbd' ? '/dev/nbd0' : '/dev/ublkb0'
  return {
    name: `rdmakit ${scheme}, ${front}`,
    serverProcess: 'swap-server/dist/cli.js',
    async withSwap({ server, client, address, bytes }, body) {
      const memory = Math.ceil(bytes / slabBytes) * slabBytes
      const service = rdmakitSwap(`${scheme}://${address}:7471`, String(memory), String(bytes), device)
      await using _swap = await RemoteSwap.attach(server, client, service)
      return await body()
    },
  }
}

/** By road: over Soft-RoCE, and over TCP in user space. Each has both fronts. */
export const rdmakitPaths = {
  rdma: [rdmakitPath('rdma', 'nbd'), rdmakitPath('rdma', 'ublk')],
  iwarp: [rdmakitPath('iwarp', 'nbd'), rdmakitPath('iwarp', 'ublk')],
} as const
