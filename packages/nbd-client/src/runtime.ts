import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { createServer, request, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EngineStatistics } from './engine.js'
import type { SlabState } from './slab-table.js'

/** What a running nbd-client tells of itself. */
export interface ClientStatus {
  readonly pid: number
  readonly mode: 'serve' | 'attach'
  /** `/dev/nbd0`, or the export's URI */
  readonly target: string
  /** bytes */
  readonly size: number
  readonly swap: boolean
  readonly uptimeSeconds: number
  /** wanted of each slab */
  readonly replicas: number
  /** slabs in each state */
  readonly slabs: Readonly<Record<SlabState, number>>
  readonly servers: readonly {
    uri: string
    /** that the volume has there */
    slabs: number
    /** of more, allocated ahead of use */
    spares: number
    state: 'up' | 'failed'
    reason?: string
  }[]
  readonly statistics: EngineStatistics
}

/** Where running clients leave their control sockets: `$RDMAKIT_RUN`, else /run/rdmakit for root. */
export function runtimeDirectory(): string {
  if (process.env.RDMAKIT_RUN) return process.env.RDMAKIT_RUN
  if (process.getuid?.() === 0) return '/run/rdmakit'
  return join(process.env.XDG_RUNTIME_DIR ?? join(tmpdir(), `rdmakit-${process.getuid?.()}`), 'rdmakit')
}

const SOCKET = /^nbd-client-(\d+)\.sock$/

/** The control socket of this process: status for `nbd-client status`, a stop for `nbd-client detach`. */
export class ControlSocket {
  readonly #server: Server
  readonly #path: string

  private constructor(server: Server, path: string) {
    this.#server = server
    this.#path = path
  }

  static async open(status: () => ClientStatus, stop: () => void): Promise<ControlSocket> {
    const directory = runtimeDirectory()
    mkdirSync(directory, { recursive: true, mode: 0o700 })
    const path = join(directory, `nbd-client-${process.pid}.sock`)
    rmSync(path, { force: true })
    const server = createServer((message, reply) => {
      message.resume()
      if (message.method === 'GET' && message.url === '/status') {
        reply.setHeader('content-type', 'application/json')
        reply.end(JSON.stringify(status(), (_, value) => (typeof value === 'bigint' ? Number(value) : value)))
      } else if (message.method === 'POST' && message.url === '/stop') {
        reply.statusCode = 202
        reply.end()
        stop()
      } else {
        reply.statusCode = 404
        reply.end()
      }
    })
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(path, resolve)
    })
    chmodSync(path, 0o600)
    server.unref()
    return new ControlSocket(server, path)
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
    rmSync(this.#path, { force: true })
  }
}

/** A running client as found by its control socket. */
export interface RunningClient {
  readonly status: ClientStatus
  /** Asks it to stop. Resolves once it has taken the request; it ends later. */
  stop(): Promise<void>
}

/** All running clients of this user. Sockets that nobody answers on are removed. */
export async function runningClients(): Promise<RunningClient[]> {
  const directory = runtimeDirectory()
  if (!existsSync(directory)) return []
  const clients: RunningClient[] = []
  for (const name of readdirSync(directory)) {
    const pid = SOCKET.exec(name)?.[1]
    if (pid === undefined) continue
    const path = join(directory, name)
    try {
      const status = JSON.parse(await call(path, 'GET', '/status')) as ClientStatus
      clients.push({ status, stop: async () => void (await call(path, 'POST', '/stop')) })
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code === 'ECONNREFUSED') rmSync(path, { force: true })
    }
  }
  return clients
}

const CALL_TIMEOUT_MS = 3_000

function call(socketPath: string, method: string, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const message = request({ socketPath, method, path, timeout: CALL_TIMEOUT_MS }, (reply) => {
      let body = ''
      reply.setEncoding('utf8')
      reply.on('data', (piece: string) => {
        body += piece
      })
      reply.on('end', () => resolve(body))
      reply.on('error', reject)
    })
    message.on('timeout', () => message.destroy(new Error(`${socketPath} does not answer`)))
    message.on('error', reject)
    message.end()
  })
}
