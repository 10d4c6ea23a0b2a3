import { randomBytes } from 'node:crypto'
import { UsageError, VerbsError } from '@rdmakit/verbs'
import { deferred, onAbort } from '@rdmakit/verbs/internal'
import { clearTimeout, performance, setTimeout } from '../base/clock.js'
import { RingConnection } from '../connection/connection.js'
import type { CloseReason } from '../connection/states.js'
import { MAX_EPOCH, type Session } from '../setup/handshake.js'
import { type ConnectOptions, settings } from '../setup/options.js'
import { Backoff, type ReconnectOptions } from './backoff.js'
import type { CurrentConnection } from './current-connection.js'

/** What a {@link RingClient} is doing. `epoch` is the connection's number in the client's session. */
export type ClientState =
  /** connecting to `uri`; `attempt` counts from 1 since the client was last open */
  | { readonly state: 'connecting'; readonly attempt: number; readonly epoch: number; readonly uri: string }
  /** as the connection's own: see {@link ConnectionState} */
  | { readonly state: 'open' | 'idle' | 'draining'; readonly epoch: number }
  /** the connection has ended; `reason` is undefined after an orderly close by the peer */
  | { readonly state: 'lost'; readonly epoch: number; readonly reason: CloseReason }
  /** waiting for `milliseconds` before the next attempt; `reason`: why the last one failed, or the loss */
  | {
      readonly state: 'waiting'
      readonly attempt: number
      readonly milliseconds: number
      readonly reason: unknown
    }
  /** the final state; `reason` as of {@link RingClient.closed} */
  | { readonly state: 'closed'; readonly reason: unknown }

/** How a client connects, once and again. */
export interface ReconnectionOptions extends Omit<ConnectOptions, 'session' | 'closeWhenIdle' | 'signal'> {
  /** number of attempts, and the waits between them */
  readonly reconnect?: ReconnectOptions | undefined
  /** milliseconds that one attempt at one address may take, default 5000 */
  readonly timeout?: number | undefined
}

/** The listener to the fates of a client's connections. */
export interface ReconnectionSink {
  state(state: ClientState): void
  /** One has opened, and has told nothing yet. */
  opened(connection: RingConnection): void
  /** Its state has been told. */
  ready(connection: RingConnection): void
  /** There will be no more. */
  ended(): void
}

/** Connects, and when the connection ends connects again, until the client closes or it has failed too often. */
export class Reconnection {
  readonly #uris: readonly string[]
  readonly #options: ConnectOptions
  readonly #backoff: Backoff
  readonly #current: CurrentConnection
  readonly #sink: ReconnectionSink
  readonly #abort = new AbortController()
  #session: Session = { id: newSession(), epoch: 0 }
  #referenced = true
  /** until the next attempt */
  #timer: NodeJS.Timeout | undefined

  /** @throws UsageError for a bad option */
  constructor(
    uris: readonly string[],
    { reconnect, ...options }: ReconnectionOptions,
    current: CurrentConnection,
    sink: ReconnectionSink,
  ) {
    settings(options)
    this.#uris = uris
    this.#options = options
    this.#backoff = new Backoff(reconnect)
    this.#current = current
    this.#sink = sink
  }

  get sessionId(): string {
    return this.#session.id
  }

  /** Whether connections, and the waits between them, keep the event loop alive; at first they do. */
  set referenced(on: boolean) {
    this.#referenced = on
    if (on) {
      this.#current.connection?.ref()
      this.#timer?.ref()
    } else {
      this.#current.connection?.unref()
      this.#timer?.unref()
    }
  }

  /** Ends the attempt that is under way, or the wait before the next. */
  stop(): void {
    this.#abort.abort(this.#current.shutdown())
  }

  /** @returns why it has ended: see {@link RingClient.closed} */
  async run(): Promise<unknown> {
    const current = this.#current
    let attempt = 0
    while (!current.isClosing) {
      attempt++
      let reason: unknown
      try {
        const connection = await this.#connect(attempt)
        attempt = 0
        const openSince = performance.now()
        reason = await this.#serve(connection)
        this.#backoff.lasted(performance.now() - openSince)
      } catch (failure) {
        reason = failure
      }
      current.failure =
        reason ?? new VerbsError('ESHUTDOWN', 'connection', current.description, 'the peer closed it')
      if (current.isClosing) break
      if (reason instanceof UsageError || attempt >= this.#backoff.maxAttempts) {
        current.reason = reason
        break
      }
      const milliseconds = this.#backoff.next()
      this.#sink.state({ state: 'waiting', attempt: attempt + 1, milliseconds, reason })
      await this.#pause(milliseconds)
    }
    current.isClosing = true
    this.#sink.ended()
    return current.reason
  }

  async #pause(milliseconds: number): Promise<void> {
    const { promise, resolve } = deferred<void>()
    const { signal } = this.#abort
    this.#timer = setTimeout(resolve, milliseconds)
    if (!this.#referenced) this.#timer.unref()
    const stop = onAbort(signal, () => resolve())
    if (signal.aborted) resolve()
    await promise
    clearTimeout(this.#timer)
    stop()
  }

  /** Tries each address once. */
  async #connect(attempt: number): Promise<RingConnection> {
    const { signal } = this.#abort
    const failures: unknown[] = []
    for (const uri of this.#uris) {
      // An epoch for each try: one that failed here may have been taken there.
      const session = this.#nextSession()
      this.#sink.state({ state: 'connecting', attempt, epoch: session.epoch, uri })
      try {
        return await RingConnection.connect(uri, { ...this.#options, session, signal })
      } catch (failure) {
        if (failure instanceof UsageError || signal.aborted) throw failure
        failures.push(failure)
      }
    }
    throw failures.length === 1
      ? failures[0]
      : new AggregateError(failures, `none of ${this.#uris.join(', ')} connects`)
  }

  /** Makes `connection` the client's until it ends; resolves with why it did. */
  async #serve(connection: RingConnection): Promise<CloseReason> {
    const current = this.#current
    if (current.isClosing) {
      await connection.close({ drain: false })
      return undefined
    }
    current.connection = connection
    if (!this.#referenced) connection.unref()
    this.#sink.opened(connection)
    connection.states.subscribe((state) => {
      switch (state.state) {
        case 'lost':
          current.connection = undefined
          this.#sink.state(state)
          break
        case 'closed':
          current.connection = undefined
          if (!current.isClosing) this.#sink.state({ state: 'lost', epoch: state.epoch, reason: undefined })
          break
        default:
          this.#sink.state(state)
      }
    })
    this.#sink.ready(connection)
    return connection.closed
  }

  #nextSession(): Session {
    const { id, epoch } = this.#session
    this.#session = epoch < MAX_EPOCH ? { id, epoch: epoch + 1 } : { id: newSession(), epoch: 1 }
    return this.#session
  }
}

/** 64 random bits, not all zero */
function newSession(): string {
  const id = randomBytes(8).toString('hex')
  return /^0+$/.test(id) ? newSession() : id
}
