import { type ConnectionRequest, Listener, UsageError } from '@rdmakit/verbs'
import { acceptRing, refuseRing } from './accept.js'
import type { CloseOptions, RingConnection } from './connection.js'
import { applicationData, isRingRequest } from './handshake.js'
import { type AcceptOptions, settings } from './options.js'

export interface RingServerOptions extends Omit<AcceptOptions, 'signal'> {
  /** called with each new connection; subscribe and set a handler before it returns */
  readonly onConnection: (connection: RingConnection) => void
  /** called with what went wrong with a connection before it was one; default: nothing is done */
  readonly onError?: (failure: unknown) => void
  /** whether to take a connection; the peer's connect fails with the text if a string is returned */
  readonly admit?: (applicationData: Uint8Array, peerUri: string) => true | string
  /** connections at a time, default 256; more are refused */
  readonly maxConnections?: number
}

/** Listens for ring connections. It keeps the event loop alive until it is closed. */
export class RingServer {
  readonly #listeners: Listener[] = []
  readonly #connections = new Set<RingConnection>()
  readonly #maxConnections: number
  readonly #arriving = new Set<Promise<void>>()
  #closed = false

  private constructor(maxConnections: number) {
    this.#maxConnections = maxConnections
  }

  /**
   * Listens at one address or several, each `iwarp://host:port` or `rdma://host:port`; port 0 takes
   * any free one.
   * @throws UsageError for a bad address or option; VerbsError EADDRINUSE, EADDRNOTAVAIL, ENODEV
   */
  static async listen(uri: string | readonly string[], options: RingServerOptions): Promise<RingServer> {
    settings(options)
    const { maxConnections = 256 } = options
    if (!Number.isInteger(maxConnections) || maxConnections < 1)
      throw new UsageError(`maxConnections must be a whole number from 1, not ${maxConnections}`)
    const uris = typeof uri === 'string' ? [uri] : uri
    if (uris.length === 0) throw new UsageError('listen needs an address')
    const server = new RingServer(maxConnections)
    try {
      for (const one of uris)
        server.#listeners.push(await Listener.listen(one, (request) => server.#arrive(request, options)))
    } catch (failure) {
      await server.close()
      throw failure
    }
    return server
  }

  /** Where it listens, with the port resolved: the first of {@link uris}. */
  get uri(): string {
    return this.uris[0] as string
  }

  get uris(): readonly string[] {
    return this.#listeners.map((listener) => listener.uri)
  }

  get connections(): ReadonlySet<RingConnection> {
    return this.#connections
  }

  /** Stops listening and closes its connections. Idempotent. */
  async close(options: CloseOptions = {}): Promise<void> {
    this.#closed = true
    for (const listener of this.#listeners) listener.close()
    await Promise.allSettled(this.#arriving)
    await Promise.all([...this.#connections].map((connection) => connection.close(options)))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #arrive(request: ConnectionRequest, options: RingServerOptions): Promise<void> {
    if (this.#closed || this.#connections.size + this.#arriving.size >= this.#maxConnections) {
      refuseRing(request, this.#closed ? 'the server is closed' : 'too many connections')
      return
    }
    const taken = this.#take(request, options)
    this.#arriving.add(taken)
    try {
      await taken
    } finally {
      this.#arriving.delete(taken)
    }
  }

  async #take(request: ConnectionRequest, options: RingServerOptions): Promise<void> {
    let connection: RingConnection
    try {
      if (isRingRequest(request.privateData)) {
        const verdict = options.admit?.(applicationData(request.privateData), request.id.peerUri) ?? true
        if (verdict !== true) {
          refuseRing(request, verdict)
          return
        }
      }
      connection = await acceptRing(request, options)
    } catch (failure) {
      // Refused already, unless it was `admit` or a malformed request that threw.
      refuseRing(request, 'malformed request')
      options.onError?.(failure)
      return
    }
    this.#connections.add(connection)
    void connection.closed.then(() => this.#connections.delete(connection))
    // One that came while the server closes is closed with the others.
    if (this.#closed) return
    try {
      options.onConnection(connection)
    } catch (failure) {
      options.onError?.(failure)
      await connection.close({ drain: false })
    }
  }
}
