import { type ConnectionRequest, Listener, UsageError, VerbsError } from '@rdmakit/verbs'
import { deferred, integerInRange, onAbort, within } from '@rdmakit/verbs/internal'
import { isPromise } from '../base/is-promise.js'
import { DEFAULT_TIMEOUT_MS, deadlineAfter, left } from '../base/timeout.js'
import type { CloseOptions } from '../connection/call-options.js'
import type { RingConnection } from '../connection/connection.js'
import { type RingStatistics, Totals } from '../connection/statistics.js'
import { acceptRing, refuse } from '../setup/accept.js'
import {
  decodeHandshake,
  type Handshake,
  isRingRequest,
  type Session,
  takesRing,
} from '../setup/handshake.js'
import { type AcceptOptions, settings } from '../setup/options.js'
import { Sessions } from './sessions.js'

export interface RingServerOptions extends Omit<AcceptOptions, 'signal'> {
  /**
   * Called with each new connection. Subscribe before it returns, or messages wait in the ring. It may be async: requests
   * wait until there is a handler, or until its promise settles. If it throws or rejects, the connection is broken, and
   * {@link onError} gets the error.
   */
  readonly onConnection: (connection: RingConnection) => unknown
  /**
   * Called with the error of a connection that could not be established, or of its `onConnection`; default: errors are
   * ignored. What it throws is an uncaught exception.
   */
  readonly onError?: ((failure: unknown) => void) | undefined
  /**
   * Whether to accept a connection; if it returns a string, the peer's connect fails with it. It may be async: meanwhile
   * the request counts as arriving. If it throws or rejects, or returns anything else, the connection is refused.
   */
  readonly admit?:
    | ((applicationData: Uint8Array, peerUri: string) => true | string | Promise<true | string>)
    | undefined
  /**
   * maximum number of connections, default 256; further ones are refused. If some are still being established, the
   * oldest of these is dropped instead, so silent peers cannot exclude others
   */
  readonly maxConnections?: number | undefined
  /** connections that the kernel keeps at an address while the server is busy, default 1024 (listen(2)) */
  readonly backlog?: number | undefined
  /** closes the server gracefully when it aborts, as {@link RingServer.close} does */
  readonly signal?: AbortSignal | undefined
}

/** Counts of a server's connection requests. */
export interface RingServerCounts {
  /** connections that are open or draining */
  readonly connections: number
  /** requests that are being answered */
  readonly arriving: number
  /** connections that were accepted */
  readonly accepted: number
  /** requests that were refused or failed */
  readonly refused: number
  /** of those, for an epoch that was not higher than another of their session */
  readonly stale: number
}

/** A request that is being answered. */
interface Arrival {
  readonly giveUp: AbortController
  readonly settled: Promise<unknown>
}

/**
 * Listens for ring connections. It keeps the event loop alive until it is closed, unless {@link unref} was called.
 *
 * Of the connections of one session (see {@link RingClient}) it serves only the one with the highest epoch: an older one
 * is broken with ESTALE, and delivers nothing more, before `onConnection` is called with the new one. A connection whose
 * epoch is not higher is refused. The server remembers the epochs of 4096 sessions without a connection.
 */
export class RingServer {
  /** Settles when the server and all of its connections have closed. Never rejects. */
  readonly closed: Promise<void>
  readonly #closed = deferred<void>()
  readonly #options: RingServerOptions
  readonly #listeners: Listener[] = []
  readonly #connections = new Set<RingConnection>()
  readonly #sessions = new Sessions()
  /** @internal */
  readonly totals = new Totals()
  readonly #maxConnections: number
  readonly #maxPeerCapacity: number
  /** the oldest first; one that has made room is not there any more */
  readonly #arriving = new Set<Arrival>()
  /** those that have made room, until they are over */
  readonly #leaving = new Set<Arrival>()
  /** its signal is not listened to any more */
  #forget = () => {}
  #closing = false
  #accepted = 0
  #refused = 0
  #stale = 0

  private constructor(options: RingServerOptions, maxConnections: number, maxPeerCapacity: number) {
    this.#options = options
    this.#maxConnections = maxConnections
    this.#maxPeerCapacity = maxPeerCapacity
    this.closed = this.#closed.promise
  }

  /**
   * Listens at one or several addresses of any provider: `iwarp://host:port`, `rdma://host:port` or `shm:///path`; port 0
   * takes any free one.
   * @throws UsageError for a bad address or option; VerbsError EADDRINUSE, EADDRNOTAVAIL, ENODEV; the
   *   signal's reason
   */
  static async listen(uri: string | readonly string[], options: RingServerOptions): Promise<RingServer> {
    const { maxConnections = 256, backlog = 1024, signal, ...rest } = options
    const { maxPeerCapacity } = settings(rest)
    if (!Number.isInteger(maxConnections) || maxConnections < 1)
      throw new UsageError(`maxConnections must be a whole number from 1, not ${maxConnections}`)
    const uris = typeof uri === 'string' ? [uri] : uri
    if (uris.length === 0) throw new UsageError('listen needs an address')
    if (typeof options.onConnection !== 'function')
      throw new UsageError('onConnection must be a function: nothing else receives connections')
    const server = new RingServer(options, maxConnections, maxPeerCapacity)
    const listening = { backlog: integerInRange('backlog', backlog, 1, 65_535), ...(signal && { signal }) }
    signal?.throwIfAborted()
    server.#forget = onAbort(signal, () => void server.close())
    try {
      for (const one of uris) {
        server.#listeners.push(await Listener.listen(one, (request) => server.#arrive(request), listening))
        signal?.throwIfAborted()
      }
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

  /** Where it listens, in the order given, with the ports resolved. */
  get uris(): readonly string[] {
    return this.#listeners.map((listener) => listener.uri)
  }

  /** Its open and draining connections. */
  get connections(): ReadonlySet<RingConnection> {
    return this.#connections
  }

  /** The sum over all its connections, including ended ones. */
  statistics(): RingStatistics {
    return this.totals.statistics()
  }

  /** Keeps the event loop alive until the server is closed (the default): undoes {@link unref}. */
  ref(): this {
    for (const listener of this.#listeners) listener.ref()
    return this
  }

  /** Listening no longer keeps the program alive; each connection still does, until it has ended or is unref'ed. */
  unref(): this {
    for (const listener of this.#listeners) listener.unref()
    return this
  }

  /** True until the server is closing. */
  get isListening(): boolean {
    return !this.#closing
  }

  /** Counts of its connection requests. */
  get counts(): RingServerCounts {
    return {
      connections: this.#connections.size,
      arriving: this.#arriving.size,
      accepted: this.#accepted,
      refused: this.#refused,
      stale: this.#stale,
    }
  }

  /**
   * Stops listening, then closes its connections: with `drain` (default), requests in both directions are answered and
   * accepted messages are delivered first. Idempotent; a later call with `drain: false` breaks connections that an
   * earlier call drains. Resolves when all connections have ended: at the latest after `timeout` plus the time to tear
   * them down.
   * @throws UsageError for a bad timeout, nothing else
   */
  async close(options: CloseOptions = {}): Promise<void> {
    const { drain = true } = options
    const deadline = deadlineAfter('timeout', options.timeout)
    this.#closing = true
    this.#forget()
    for (const listener of this.#listeners) listener.close()
    const arriving = [...this.#arriving, ...this.#leaving]
    const arrived = Promise.allSettled(arriving.map(({ settled }) => settled))
    if (drain && arriving.length > 0) await within(arrived, left(deadline), () => undefined).catch(() => {})
    // Peers that have not arrived by now get no answer, and their connect fails.
    for (const { giveUp } of arriving) giveUp.abort()
    await arrived
    await Promise.all([...this.#connections].map((one) => one.close({ drain, timeout: left(deadline) })))
    this.#closed.resolve()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #arrive(request: ConnectionRequest): Promise<void> {
    const giveUp = new AbortController()
    const taken = this.#take(request, giveUp.signal)
    const arrival = { giveUp, settled: taken }
    this.#arriving.add(arrival)
    let connection: RingConnection | undefined
    try {
      connection = await taken
    } catch (failure) {
      this.#refused++
      // Refused already, unless it was `admit` or a malformed request that threw.
      const malformed = failure instanceof VerbsError && failure.code === 'EPROTO'
      refuse(
        request,
        malformed ? 'malformed request' : 'the server failed to decide',
        this.#options.wireVersions,
      )
      this.#options.onError?.(failure)
    } finally {
      this.#arriving.delete(arrival)
      this.#leaving.delete(arrival)
    }
    if (connection !== undefined) await this.#hand(connection)
  }

  /** The connection, which is one of {@link connections} now; undefined when it is refused. */
  async #take(request: ConnectionRequest, signal: AbortSignal): Promise<RingConnection | undefined> {
    const handshake = isRingRequest(request.privateData)
      ? decodeHandshake(request.privateData, request.id.description, this.#options.wireVersions)
      : undefined
    const session = handshake?.session
    // The checks and a plain verdict run in this turn, so that they apply to the next request.
    const verdict = this.#refusal(request, handshake)
    const decided = typeof verdict === 'object'
    let refusal = decided ? await this.#decided(verdict, signal) : verdict
    // Meanwhile the server may have closed, or another epoch begun. In the turn in which this one does: of two that are
    // decided together both would pass an earlier check, and the lower could come second.
    if (decided) refusal ??= this.#closing ? 'the server is closed' : this.#outdated(session)
    if (refusal !== undefined) {
      this.#refused++
      refuse(request, refusal, this.#options.wireVersions)
      return undefined
    }
    // A ring that is too large is refused below. Its client asks again with the same epoch and a smaller one, so the
    // session must not know of this try.
    if (session !== undefined && takesRing(handshake as Handshake, this.#maxPeerCapacity))
      await this.#sessions.enter(session)
    const connection = await acceptRing(request, { ...this.#options, signal })
    this.#accepted++
    this.#connections.add(connection)
    this.totals.add(connection)
    void connection.closed.then(() => this.#connections.delete(connection))
    return connection
  }

  /** Hands a new connection to its waiter. */
  async #hand(connection: RingConnection): Promise<void> {
    const { onConnection, onError } = this.#options
    const { session } = connection
    if (session !== undefined && !this.#sessions.open(connection, session)) {
      await connection.abandon(session.epoch)
      return
    }
    // One that came while the server closes is closed with the others.
    if (this.#closing) return
    const failed = async (failure: unknown) => {
      try {
        onError?.(failure)
      } finally {
        await connection.close({ drain: false })
      }
    }
    try {
      const owner = onConnection(connection)
      if (!isPromise(owner)) return
      connection.expectHandler(owner)
      // It may take as long as the connection lives.
      void owner.then(undefined, failed)
    } catch (failure) {
      await failed(failure)
    }
  }

  /** Why a request is refused, or undefined when it is taken; a promise of it when `admit` gives one. */
  #refusal(
    request: ConnectionRequest,
    handshake: Handshake | undefined,
  ): string | undefined | Promise<string | undefined> {
    if (this.#closing) return 'the server is closed'
    const session = handshake?.session
    const stale = this.#outdated(session)
    if (stale !== undefined) return stale
    if (this.#places(session) < 1 && !this.#makeRoom()) return 'too many connections'
    if (handshake === undefined) return undefined
    const { admit } = this.#options
    if (admit === undefined) return undefined
    const verdict = admit(handshake.applicationData, request.id.peerUri)
    return isPromise(verdict) ? verdict.then(reasonOf) : reasonOf(verdict)
  }

  /** The result of a verdict that takes time. */
  #decided(verdict: Promise<string | undefined>, signal: AbortSignal): Promise<string | undefined> {
    const late = () => new VerbsError('ETIMEDOUT', 'admit', 'connection request', 'it did not decide in time')
    return within(verdict, this.#options.timeout ?? DEFAULT_TIMEOUT_MS, late, signal)
  }

  #outdated(session: Session | undefined): string | undefined {
    const stale = session && this.#sessions.refusal(session)
    if (stale !== undefined) this.#stale++
    return stale
  }

  /** The oldest of those that are on their way ends. @returns false: there is none */
  #makeRoom(): boolean {
    const [oldest] = this.#arriving
    if (oldest === undefined) return false
    this.#arriving.delete(oldest)
    this.#leaving.add(oldest)
    const detail = 'it was dropped for a later request: too many were being answered'
    oldest.giveUp.abort(new VerbsError('EUSERS', 'rdma_accept', 'connection request', detail))
    return true
  }

  /** Places that are left for a connection; one that takes another's place needs none. */
  #places(session: Session | undefined): number {
    // Arriving connections have their place already; this request is counted once it is through here.
    const left = this.#maxConnections - this.#connections.size - this.#arriving.size
    return session !== undefined && this.#sessions.replaces(session) ? left + 1 : left
  }
}

/** Of what `admit` has said. @throws UsageError: nobody is admitted by a verdict that is missing */
function reasonOf(verdict: unknown): string | undefined {
  if (verdict === true) return undefined
  if (typeof verdict === 'string') return verdict
  throw new UsageError(`admit must return true or a string, not ${String(verdict)}`)
}
