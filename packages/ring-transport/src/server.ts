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
  readonly #listeners: Listener[]
  readonly #connections: Set<RingConnection>

  private constructor(listeners: Listener[], connections: Set<RingConnection>) {
    this.#listeners = listeners
    this.#connections = connections
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
    const connections = new Set<RingConnection>()
    let arriving = 0

    const take = async (request: ConnectionRequest) => {
      if (connections.size + arriving >= maxConnections) return refuseRing(request, 'too many connections')
      arriving++
      try {
        if (isRingRequest(request.privateData)) {
          const verdict = options.admit?.(applicationData(request.privateData), request.id.peerUri) ?? true
          if (verdict !== true) return refuseRing(request, verdict)
        }
        const connection = await acceptRing(request, options)
        connections.add(connection)
        void connection.closed.then(() => connections.delete(connection))
        options.onConnection(connection)
      } catch (failure) {
        refuseRing(request, 'malformed request')
        options.onError?.(failure)
      } finally {
        arriving--
      }
    }

    const listeners: Listener[] = []
    try {
      for (const one of uris) listeners.push(await Listener.listen(one, take))
    } catch (failure) {
      for (const listener of listeners) listener.close()
      throw failure
    }
    return new RingServer(listeners, connections)
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
    for (const listener of this.#listeners) listener.close()
    await Promise.all([...this.#connections].map((connection) => connection.close(options)))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }
}
