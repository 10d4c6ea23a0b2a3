import { randomBytes } from 'node:crypto'
import { UsageError, VerbsError, type WaitOptions } from '@rdmakit/verbs'
import { CallbackScope, deferred, onAbort, within } from '@rdmakit/verbs/internal'
import {
  BehaviorSubject,
  concatMap,
  EMPTY,
  NEVER,
  type Observable,
  type ObservableInput,
  ReplaySubject,
  switchMap,
} from 'rxjs'
import { clearTimeout, performance, setTimeout } from '../base/clock.js'
import { interruptible } from '../base/interruptible.js'
import { DEFAULT_TIMEOUT_MS, left, milliseconds } from '../base/timeout.js'
import { type BatchOptions, type RequestOptions, RingConnection } from '../connection/connection.js'
import type { CloseOptions, CloseReason } from '../connection/exchange.js'
import { type RingStatistics, Totals } from '../connection/statistics.js'
import type { RingBatch } from '../receiving/batch.js'
import type { RingMessage } from '../receiving/message.js'
import type { RequestHandler } from '../requests/responder.js'
import { MAX_EPOCH, type Session } from '../setup/handshake.js'
import { type ConnectOptions, settings } from '../setup/options.js'
import type { RingOffer } from '../transfer/offer.js'
import { TRANSMIT_TIMEOUT_MS, type TransmitOptions } from '../transfer/outgoing.js'
import { Backoff, type ReconnectOptions } from './backoff.js'

/** What a {@link RingClient} is doing. `epoch` is the connection's number in the client's session. */
export type ClientState =
  /** it connects to `uri`; `attempt` counts from 1 since it was last open */
  | { readonly state: 'connecting'; readonly attempt: number; readonly epoch: number; readonly uri: string }
  /** as the connection's own: see {@link ConnectionState} */
  | { readonly state: 'open' | 'idle' | 'draining'; readonly epoch: number }
  /** the connection has ended; `reason` is undefined when the peer closed it in good order */
  | { readonly state: 'lost'; readonly epoch: number; readonly reason: CloseReason }
  /** for so long, before the next attempt; `reason` is why the one before failed, or the loss */
  | {
      readonly state: 'waiting'
      readonly attempt: number
      readonly milliseconds: number
      readonly reason: unknown
    }
  /** the last; `reason` as {@link RingClient.closed} has it */
  | { readonly state: 'closed'; readonly reason: unknown }

export interface RingClientOptions extends Omit<ConnectOptions, 'session' | 'closeWhenIdle'> {
  /** how often it tries, and how long it waits in between */
  readonly reconnect?: ReconnectOptions | undefined
  /** closes the client in good order when it aborts */
  readonly signal?: AbortSignal | undefined
  /** milliseconds that one attempt at one address may take, default 5000 */
  readonly timeout?: number | undefined
}

export interface ClientRequestOptions extends RequestOptions {
  /**
   * Whether the peer may get the request twice: it is then sent again when the connection is lost before
   * the response has come. Default false. Its bytes must not change until the response is there.
   */
  readonly idempotent?: boolean | undefined
}

/**
 * Keeps a connection to a {@link RingServer}: connects, and when the connection ends, however it ends,
 * connects again, until it is closed. All its connections are of one session, each of a higher epoch than
 * the one before, so that the server never serves two of them. It keeps the event loop alive until it is
 * closed, unless {@link unref} says that it is no reason to stay.
 *
 * A message is delivered at most once: what was sent and had not arrived when a connection was lost is gone.
 */
export class RingClient {
  /** What it is doing, from the current state on. Completes after `closed`. */
  readonly states: Observable<ClientState>
  /**
   * Messages of the peer, connection after connection; each as {@link RingConnection.messages} has it.
   * Completes when the client closes.
   */
  readonly messages: Observable<RingMessage>
  /** {@link messages} without the copy: see {@link RingConnection.views} */
  readonly views: Observable<RingMessage>
  /** Large messages of the peer, connection after connection: see {@link RingConnection.offers} */
  readonly offers: Observable<RingOffer>
  /**
   * Settles once, when the client has closed and its resources are free: with undefined after
   * {@link close}, with the signal's reason, or with why it gave up. Never rejects.
   */
  readonly closed: Promise<unknown>
  /** @internal */
  readonly totals = new Totals()
  readonly #uris: readonly string[]
  readonly #options: RingClientOptions
  readonly #backoff: Backoff
  readonly #states = new ReplaySubject<ClientState>(1)
  readonly #connections = new BehaviorSubject<RingConnection | undefined>(undefined)
  readonly #abort = new AbortController()
  /** its signal is not listened to any more */
  #forget = () => {}
  #session: Session = { id: newSession(), epoch: 0 }
  #connection: RingConnection | undefined
  /** those who wait for a connection to open, or for the client to close */
  readonly #waiting = new Set<() => void>()
  #handler: RequestHandler | undefined
  /** of `#handler`: it takes views */
  #takesViews = false
  #closing = false
  #reason: unknown
  #referenced = true
  /** until the next attempt */
  #timer: NodeJS.Timeout | undefined
  /** why there is no open connection: how the last one ended, or why the last attempt failed */
  #failure: unknown

  /**
   * Begins to connect, to the first of the addresses that answers.
   * @throws UsageError for a bad option; a bad address closes the client
   */
  constructor(uri: string | readonly string[], options: RingClientOptions = {}) {
    const { reconnect, signal, ...rest } = options
    settings(rest)
    this.#uris = typeof uri === 'string' ? [uri] : [...uri]
    if (this.#uris.length === 0) throw new UsageError('a client needs an address')
    this.#options = options
    this.#backoff = new Backoff(reconnect)
    this.states = new CallbackScope('RingClient').observe(this.#states)
    const each = <T>(of: (connection: RingConnection) => Observable<T>) =>
      this.#connections.pipe(switchMap((connection) => (connection === undefined ? NEVER : of(connection))))
    this.messages = each(({ messages }) => messages)
    this.views = each(({ views }) => views)
    this.offers = each(({ offers }) => offers)
    if (signal?.aborted) {
      this.#closing = true
      this.#reason = signal.reason
    } else
      this.#forget = onAbort(signal, () => {
        this.#reason = signal?.reason
        void this.close()
      })
    this.closed = this.#run()
  }

  /** The 16 hexadecimal digits that the server knows this client's connections by. */
  get sessionId(): string {
    return this.#session.id
  }

  /** The connection now, open or draining; undefined while there is none. */
  get connection(): RingConnection | undefined {
    return this.#connection
  }

  /** True while a message can be sent. */
  get isOpen(): boolean {
    return this.#connection?.isOpen === true
  }

  /** Keeps the event loop alive until it is closed, which is so unless {@link unref} was called. */
  ref(): this {
    this.#referenced = true
    this.#connection?.ref()
    this.#timer?.ref()
    return this
  }

  /** Neither its connections nor the waits between them are a reason for the program to stay; an attempt to connect is. */
  unref(): this {
    this.#referenced = false
    this.#connection?.unref()
    this.#timer?.unref()
    return this
  }

  /** Of all its connections together, those that have ended too. */
  statistics(): RingStatistics {
    return this.totals.statistics()
  }

  /**
   * Resolves with the connection when there is one that is open.
   * @param options timeout in milliseconds, default 5000
   * @throws VerbsError ETIMEDOUT, ESHUTDOWN when the client closes first; UsageError for a bad timeout; the
   *   signal's reason
   */
  async opened({ signal, timeout = DEFAULT_TIMEOUT_MS }: WaitOptions = {}): Promise<RingConnection> {
    return await this.#whenOpen(performance.now() + milliseconds('timeout', timeout), signal)
  }

  /**
   * Sends one message, as {@link RingConnection.send} does, with 32 bits that come with it.
   * @returns false when it was not taken, because the peer's ring is full or there is no open connection:
   *   wait for {@link writable}
   * @throws VerbsError EMSGSIZE, ESHUTDOWN when the client is closed
   */
  send(bytes: Uint8Array, immediate = 0): boolean {
    if (this.#closing) throw this.#shutdown()
    const connection = this.#connection
    if (connection?.isOpen !== true) return false
    try {
      return connection.send(bytes, immediate)
    } catch (failure) {
      if (connection.isOpen) throw failure
      return false
    }
  }

  /** Posts what was sent in this turn now. */
  flush(): void {
    if (this.isOpen) this.#connection?.flush()
  }

  /**
   * Resolves when there is an open connection that is likely to take a message.
   * @throws VerbsError ESHUTDOWN when the client closes; the signal's reason
   */
  async writable({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    for (;;) {
      const connection = await this.#whenOpen(Number.POSITIVE_INFINITY, signal)
      try {
        await connection.writable(signal === undefined ? {} : { signal })
        return
      } catch (failure) {
        if (connection.isOpen || signal?.aborted) throw failure
      }
    }
  }

  /**
   * Sends a request, when there is an open connection, and waits for the response.
   * @param options timeout in milliseconds for all of it, default 5000
   * @throws RemoteError when the peer's handler fails; VerbsError ETIMEDOUT, EMSGSIZE, ECONNRESET when the
   *   connection is lost before the response has come (it may have been handled), unless it is
   *   `idempotent`, ESHUTDOWN when the client is closed; UsageError for a bad timeout; the signal's reason
   */
  async request(bytes: Uint8Array, options: ClientRequestOptions = {}): Promise<Uint8Array> {
    const { timeout = DEFAULT_TIMEOUT_MS, idempotent = false, ...rest } = options
    return await this.#whileOpen('request', timeout, rest.signal, idempotent, (connection, left) =>
      connection.request(bytes, { ...rest, timeout: left }),
    )
  }

  /**
   * Sends a message of any length, when there is an open connection, and waits until the peer has it: see
   * {@link RingConnection.transmit}.
   * @param options timeout in milliseconds for all of it, default 60000
   * @throws as {@link request}; ECONNRESET when the connection is lost meanwhile: the peer may have the message or not
   */
  async transmit(bytes: Uint8Array, options: TransmitOptions = {}): Promise<void> {
    const { timeout = TRANSMIT_TIMEOUT_MS, signal } = options
    await this.#whileOpen('transmit', timeout, signal, false, (connection, left) =>
      connection.transmit(bytes, { ...options, timeout: left }),
    )
  }

  /** Answers the peer's requests with `handler` on each connection: see {@link RingConnection.handle}. */
  handle(handler: RequestHandler | undefined): void {
    this.#handle(handler, false)
  }

  /** {@link handle} without the copy: see {@link RingConnection.handleViews}. */
  handleViews(handler: RequestHandler | undefined): void {
    this.#handle(handler, true)
  }

  /**
   * Messages of the peer in batches, connection after connection: see {@link RingConnection.batches}. It ends when the
   * client closes.
   */
  batches(options: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return interruptible((left) => this.#batches('batches', options, left))
  }

  /** {@link batches} without the copies: see {@link RingConnection.viewBatches}. */
  viewBatches(options: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return interruptible((left) => this.#batches('viewBatches', options, left))
  }

  /**
   * Runs `project` on each message of the peer, connection after connection: see {@link RingConnection.consume}. What is
   * in the works when a connection is lost is finished before those of the next begin. It completes when the client
   * closes.
   */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#connections.pipe(concatMap((one) => one?.consume(project, concurrency) ?? EMPTY))
  }

  /** {@link consume} without the copies: see {@link RingConnection.consumeViews}. */
  consumeViews<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#connections.pipe(concatMap((one) => one?.consumeViews(project, concurrency) ?? EMPTY))
  }

  /**
   * Closes the connection, in good order unless `drain` is false, and connects no more. Idempotent; resolves
   * when its resources are free.
   * @throws UsageError for a bad timeout, nothing else
   */
  async close(options: CloseOptions = {}): Promise<void> {
    if (options.timeout !== undefined) milliseconds('timeout', options.timeout)
    this.#closing = true
    this.#abort.abort(this.#shutdown())
    this.#takeTurn()
    await this.#connection?.close(options)
    await this.closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #handle(handler: RequestHandler | undefined, views: boolean): void {
    this.#handler = handler
    this.#takesViews = views
    if (this.#connection !== undefined) this.#handOn(this.#connection)
  }

  #handOn(connection: RingConnection): void {
    if (this.#takesViews) connection.handleViews(this.#handler)
    else connection.handle(this.#handler)
  }

  async *#batches(
    way: 'batches' | 'viewBatches',
    { limit, signal }: BatchOptions,
    left: AbortSignal,
  ): AsyncGenerator<RingBatch, void, void> {
    const stop = signal === undefined ? left : AbortSignal.any([signal, left])
    let last: RingConnection | undefined
    for (;;) {
      const connection = await this.#another(last, stop)
      if (connection === undefined) return
      yield* connection[way]({ limit, signal: stop })
      last = connection
    }
  }

  /** The next connection after `last`; undefined when the client closes. @throws the signal's reason */
  async #another(last: RingConnection | undefined, signal: AbortSignal): Promise<RingConnection | undefined> {
    for (;;) {
      signal.throwIfAborted()
      const connection = this.#connection
      if (connection !== undefined && connection !== last) return connection
      if (this.#closing) return undefined
      await this.#turn(Number.POSITIVE_INFINITY, () => undefined, signal)
    }
  }

  /** Works on an open connection; on the next one when the one before was lost meanwhile and `again` says so. */
  async #whileOpen<T>(
    verb: string,
    timeout: number,
    signal: AbortSignal | undefined,
    again: boolean,
    work: (connection: RingConnection, left: number) => Promise<T>,
  ): Promise<T> {
    const deadline = performance.now() + milliseconds('timeout', timeout)
    for (;;) {
      const connection = await this.#whenOpen(deadline, signal)
      try {
        return await work(connection, left(deadline))
      } catch (failure) {
        if (connection.isOpen || signal?.aborted || !(failure instanceof VerbsError)) throw failure
        // It began to close before anything was sent, so nobody has it yet.
        if (failure.code === 'ESHUTDOWN') continue
        if (failure.code === 'EMSGSIZE' || performance.now() >= deadline) throw failure
        if (!again) throw this.#because('ECONNRESET', verb, 'the connection was lost before the end', failure)
      }
    }
  }

  async #run(): Promise<unknown> {
    let attempt = 0
    while (!this.#closing) {
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
      this.#failure =
        reason ?? new VerbsError('ESHUTDOWN', 'connection', this.#description, 'the peer closed it')
      if (this.#closing) break
      if (reason instanceof UsageError || attempt >= this.#backoff.maxAttempts) {
        this.#reason = reason
        break
      }
      const milliseconds = this.#backoff.next()
      this.#states.next({ state: 'waiting', attempt: attempt + 1, milliseconds, reason })
      await this.#pause(milliseconds)
    }
    this.#closing = true
    this.#forget()
    this.#takeTurn()
    this.#connections.complete()
    this.#states.next({ state: 'closed', reason: this.#reason })
    this.#states.complete()
    return this.#reason
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
    const { reconnect: _, ...options } = this.#options
    const { signal } = this.#abort
    const failures: unknown[] = []
    for (const uri of this.#uris) {
      // An epoch for each try: one that failed here may have been taken there.
      const session = this.#nextSession()
      this.#states.next({ state: 'connecting', attempt, epoch: session.epoch, uri })
      try {
        return await RingConnection.connect(uri, { ...options, session, signal })
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
    if (this.#closing) {
      await connection.close({ drain: false })
      return undefined
    }
    this.#connection = connection
    if (!this.#referenced) connection.unref()
    this.totals.add(connection)
    this.#handOn(connection)
    connection.states.subscribe((state) => {
      switch (state.state) {
        case 'lost':
          this.#connection = undefined
          this.#states.next(state)
          break
        case 'closed':
          this.#connection = undefined
          if (!this.#closing) this.#states.next({ state: 'lost', epoch: state.epoch, reason: undefined })
          break
        default:
          this.#states.next(state)
      }
    })
    this.#connections.next(connection)
    this.#takeTurn()
    return connection.closed
  }

  /** Those who wait for a connection look again. */
  #takeTurn(): void {
    for (const wake of this.#waiting) wake()
  }

  async #whenOpen(deadline: number, signal: AbortSignal | undefined): Promise<RingConnection> {
    const expired = () =>
      this.#because('ETIMEDOUT', 'connection', 'there is no open connection', this.#failure)
    for (;;) {
      signal?.throwIfAborted()
      if (this.#closing) throw this.#shutdown()
      const connection = this.#connection
      if (connection?.isOpen) return connection
      await this.#turn(deadline, expired, signal)
    }
  }

  /** Waits until something has become of the connection. */
  async #turn(deadline: number, expired: () => unknown, signal: AbortSignal | undefined): Promise<void> {
    // Each has a promise of its own: one that all share would keep all who ever waited for it.
    const { promise, resolve } = deferred<void>()
    this.#waiting.add(resolve)
    try {
      await within(promise, left(deadline), expired, signal)
    } finally {
      this.#waiting.delete(resolve)
    }
  }

  #nextSession(): Session {
    const { id, epoch } = this.#session
    this.#session = epoch < MAX_EPOCH ? { id, epoch: epoch + 1 } : { id: newSession(), epoch: 1 }
    return this.#session
  }

  #shutdown(): VerbsError {
    return this.#because('ESHUTDOWN', 'send', 'the client is closed', this.#reason)
  }

  /** An error that says what it comes from, if anything. */
  #because(code: string, verb: string, detail: string, cause: unknown): VerbsError {
    if (cause === undefined) return new VerbsError(code, verb, this.#description, detail)
    const why = (cause as { message?: unknown } | null)?.message ?? cause
    const failure = new VerbsError(code, verb, this.#description, `${detail}: ${why}`)
    failure.cause = cause
    return failure
  }

  get #description(): string {
    return `client of ${this.#uris.join(', ')}`
  }
}

/** 64 random bits, not all zero */
function newSession(): string {
  const id = randomBytes(8).toString('hex')
  return /^0+$/.test(id) ? newSession() : id
}
