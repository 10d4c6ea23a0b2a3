import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Registry } from 'prom-client'
import { InvalidInputError } from '../command-line/invalid-input-error.js'
import { nameOption } from '../files/paths.js'

const HEADERS_TIMEOUT_MS = 5_000
const ANSWER_TIMEOUT_MS = 10_000
/** By itself Node.js looks for requests that are late only every 30 s. */
const LATE_LOOK_MS = 1_000
const MAXIMUM_CONNECTIONS = 32

/** No registry: prom-client takes long to load, and each start of a program loads this file. */
const NOTHING = {
  contentType: 'text/plain; version=0.0.4; charset=utf-8',
  metrics: () => Promise.resolve(''),
} as const

/** `host:port`, `[v6]:port`, or a port on loopback. @throws InvalidInputError */
export function parseAddress(text: string, what: string): { host: string; port: number } {
  const [, bracketed, plain, port] = /^(?:(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]*)):)?(\d{1,5})$/.exec(text) ?? []
  if (port === undefined || Number(port) > 65_535)
    throw new InvalidInputError(
      `${what} "${text}" is not host:port, or a port on loopback; port 0 takes a free one`,
    )
  return { host: bracketed ?? (plain || '127.0.0.1'), port: Number(port) }
}

/** Serves the metrics of a registry to Prometheus, at `GET /metrics`. */
export class MetricsEndpoint {
  readonly uri: string
  readonly #server: Server

  private constructor(server: Server) {
    this.#server = server
    const { address, port, family } = server.address() as AddressInfo
    this.uri = `http://${family === 'IPv6' ? `[${address}]` : address}:${port}/metrics`
  }

  /**
   * @param address as {@link parseAddress} reads it
   * @param answerTimeout milliseconds in which a client must receive an answer: those that do not would hold all
   *   connections, and refuse every other client
   * @throws InvalidInputError; EADDRINUSE and others of listen
   */
  static async open(
    registry: Pick<Registry, 'metrics' | 'contentType'>,
    address: string,
    answerTimeout = ANSWER_TIMEOUT_MS,
  ): Promise<MetricsEndpoint> {
    const { host, port } = parseAddress(address, '--metrics')
    const server = createServer(
      {
        headersTimeout: HEADERS_TIMEOUT_MS,
        requestTimeout: HEADERS_TIMEOUT_MS,
        connectionsCheckingInterval: LATE_LOOK_MS,
      },
      async (request, reply) => {
        const late = setTimeout(() => request.socket.destroy(), answerTimeout).unref()
        reply.once('close', () => clearTimeout(late))
        reply.shouldKeepAlive = false
        request.resume()
        if (request.method !== 'GET' || request.url?.split('?')[0] !== '/metrics') {
          reply.statusCode = 404
          return reply.end('GET /metrics\n')
        }
        try {
          const text = await registry.metrics()
          reply.setHeader('content-type', registry.contentType)
          reply.end(text)
        } catch (failure) {
          reply.statusCode = 500
          reply.end(`${(failure as Error).message}\n`)
        }
      },
    )
    server.maxConnections = MAXIMUM_CONNECTIONS
    // Node.js would make all answers at once for a client that sends many requests and receives nothing.
    server.maxRequestsPerSocket = 1
    await new Promise<void>((resolve, reject) => {
      server.once('error', (failure) => reject(nameOption(`--metrics ${address}`, failure)))
      server.listen(port, host, resolve)
    })
    server.unref()
    return new MetricsEndpoint(server)
  }

  /** Finds out whether the address could be had, and lets go of it. @throws as {@link open} */
  static async check(address: string): Promise<void> {
    const endpoint = await MetricsEndpoint.open(NOTHING, address)
    endpoint.close()
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }
}
