import { UsageError, type WaitOptions } from '@rdmakit/verbs'
import { CallbackScope, onAbort } from '@rdmakit/verbs/internal'
import type { Observable, ObservableInput } from 'rxjs'
import { BehaviorSubject } from 'rxjs/internal/BehaviorSubject'
import { NEVER } from 'rxjs/internal/observable/never'
import { switchMap } from 'rxjs/internal/operators/switchMap'
import { ReplaySubject } from 'rxjs/internal/ReplaySubject'
import { milliseconds, TRANSMIT_TIMEOUT_MS } from '../base/timeout.js'
import { type CloseOptions, checkImmediate, type RequestOptions } from '../connection/call-options.js'
import type { RequestHandler, RingConnection } from '../connection/connection.js'
import { type RingStatistics, Totals } from '../connection/statistics.js'
import type { BatchOptions, RingBatch, RingMessage } from '../receiving/index.js'
import type { RingOffer, TransmitOptions } from '../transfer/index.js'
import { CurrentConnection } from './current-connection.js'
import { type ClientState, Reconnection, type ReconnectionOptions } from './reconnection.js'

export interface RingClientOptions extends ReconnectionOptions {
  /** closes the client gracefully when it aborts */
  readonly signal?: AbortSignal | undefined
}

export interface ClientRequestOptions extends RequestOptions {
  /**
   * Whether the peer may get the request twice: if so, it is sent again when the connection is lost before the response
   * arrives. Default false. Its bytes must not change until the response has arrived.
   */
  readonly idempotent?: boolean | undefined
}

/**
 * Keeps a connection to a {@link RingServer}: connects, and reconnects whenever the connection ends, until the client is
 * closed. All its connections belong to one session, each with a higher epoch than the one before, so the server never
 * serves two of them. It keeps the event loop alive until it is closed, unless {@link unref} was called.
 *
 * A message is delivered at most once: messages that had not arrived when a connection was lost are gone.
 */
export class RingClient {
  /** Its states, beginning with the current one. Completes after `closed`. */
  readonly states: Observable<ClientState>
  /**
   * Messages of the peer, across connections; see {@link RingConnection.messages}.
   * Completes when the client closes.
   */
  readonly messages: Observable<RingMessage>
  /** {@link messages} without the copy: see {@link RingConnection.views} */
  readonly views: Observable<RingMessage>
  /** Large messages of the peer, across connections: see {@link RingConnection.offers} */
  readonly offers: Observable<RingOffer>
  /**
   * Settles once, when the client has closed and its resources are free: with undefined after
   * {@link close}, with the signal's reason, or with the reason why it gave up. Never rejects.
   */
  readonly closed: Promise<unknown>
  /** @internal */
  readonly totals = new Totals()
  readonly #current: CurrentConnection
  readonly #reconnection: Reconnection
  readonly #states = new ReplaySubject<ClientState>(1)
  readonly #connections = new BehaviorSubject<RingConnection | undefined>(undefined)
  /** its signal is not listened to any more */
  #forget = () => {}
  #handler: RequestHandler | undefined
  /** of `#handler`: it takes views */
  #takesViews = false
  /**
   * Starts connecting to the first address that answers.
   * @throws UsageError for a bad option; a bad address closes the client
   */
  constructor(uri: string | readonly string[], options: RingClientOptions = {}) {
    const { signal, ...rest } = options
    const uris = typeof uri === 'string' ? [uri] : [...uri]
    if (uris.length === 0) throw new UsageError('a client needs an address')
    const current = new CurrentConnection(`client of ${uris.join(', ')}`)
    this.#current = current
    this.#reconnection = new Reconnection(uris, rest, current, {
      state: (state) => this.#states.next(state),
      opened: (connection) => {
        this.totals.add(connection)
        this.#handOn(connection)
      },
      ready: (connection) => {
        this.#connections.next(connection)
        current.changed()
      },
      ended: () => this.#ended(),
    })
    this.states = new CallbackScope('RingClient').observe(this.#states)
    const each = <T>(of: (connection: RingConnection) => Observable<T>) =>
      this.#connections.pipe(switchMap((connection) => (connection === undefined ? NEVER : of(connection))))
    this.messages = each(({ messages }) => messages)
    this.views = each(({ views }) => views)
    this.offers = each(({ offers }) => offers)
    if (signal?.aborted) {
      current.isClosing = true
      current.reason = signal.reason
    } else
      this.#forget = onAbort(signal, () => {
        current.reason = signal?.reason
        void this.close()
      })
    this.closed = this.#reconnection.run()
  }

  /** The 16 hexadecimal digits by which the server recognizes this client's connections. */
  get sessionId(): string {
    return this.#reconnection.sessionId
  }

  /** The current connection, open or draining; undefined while there is none. */
  get connection(): RingConnection | undefined {
    return this.#current.connection
  }

  /** True while a message can be sent. */
  get isOpen(): boolean {
    return this.#current.connection?.isOpen === true
  }

  /** Keeps the event loop alive until the client is closed (the default): undoes {@link unref}. */
  ref(): this {
    this.#reconnection.referenced = true
    return this
  }

  /** Its connections and the waits between them no longer keep the program alive; an attempt to connect still does. */
  unref(): this {
    this.#reconnection.referenced = false
    return this
  }

  /** The sum over all its connections, including ended ones. */
  statistics(): RingStatistics {
    return this.totals.statistics()
  }

  /**
   * Resolves with the connection when one is open.
   * @param options timeout in milliseconds, default 5000
   * @throws VerbsError ETIMEDOUT, ESHUTDOWN when the client closes first; UsageError for a bad timeout; the
   *   signal's reason
   */
  async opened(options: WaitOptions = {}): Promise<RingConnection> {
    return await this.#current.opened(options)
  }

  /**
   * Sends one message, as {@link RingConnection.send} does, with 32 bits of the application.
   * @returns false when it was not accepted, because the peer's ring is full or there is no open connection:
   *   wait for {@link writable}
   * @throws VerbsError EMSGSIZE, ESHUTDOWN when the client is closed; UsageError for a bad immediate, whether or not there is
   *   a connection
   */
  send(bytes: Uint8Array, immediate = 0): boolean {
    const current = this.#current
    if (current.isClosing) throw current.shutdown()
    checkImmediate(immediate)
    const { connection } = current
    if (connection?.isOpen !== true) return false
    try {
      return connection.send(bytes, immediate)
    } catch (failure) {
      if (connection.isOpen) throw failure
      return false
    }
  }

  /** Posts the messages of this turn now. */
  flush(): void {
    if (this.isOpen) this.#current.connection?.flush()
  }

  /**
   * Resolves when there is an open connection that is likely to accept a message.
   * @throws VerbsError ESHUTDOWN when the client closes; the signal's reason
   */
  async writable({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    for (;;) {
      const connection = await this.#current.whenOpen(Number.POSITIVE_INFINITY, signal)
      try {
        await connection.writable(signal === undefined ? {} : { signal })
        return
      } catch (failure) {
        if (connection.isOpen || signal?.aborted) throw failure
      }
    }
  }

  /**
   * Sends a request, as soon as there is an open connection, and waits for the response. You may reuse `bytes` when this
   * returns, unless it is `idempotent`.
   * @param options timeout in milliseconds for the whole call, default 5000
   * @throws RemoteError when the peer's handler fails; VerbsError ETIMEDOUT, EMSGSIZE, ECONNRESET when the
   *   connection is lost before the response has come (it may have been handled), unless it is
   *   `idempotent`, ESHUTDOWN when the client is closed; UsageError for a bad timeout; the signal's reason
   */
  async request(bytes: Uint8Array, options: ClientRequestOptions = {}): Promise<Uint8Array> {
    const { idempotent = false, ...rest } = options
    checkImmediate(rest.immediate)
    const current = this.#current
    const sent = idempotent ? bytes : current.keep(bytes)
    return await current.whileOpen('request', rest, idempotent, (connection, timeout) =>
      connection.request(sent, { ...rest, timeout }),
    )
  }

  /**
   * Sends a message of any length, as soon as there is an open connection, and waits until the peer has it: see
   * {@link RingConnection.transmit}.
   * @param options timeout in milliseconds for the whole call, default 60000
   * @throws as {@link request}; ECONNRESET when the connection is lost meanwhile: the peer may have the message or not
   */
  async transmit(bytes: Uint8Array, options: TransmitOptions = {}): Promise<void> {
    const { timeout = TRANSMIT_TIMEOUT_MS, ...rest } = options
    checkImmediate(rest.immediate)
    await this.#current.whileOpen('transmit', { ...rest, timeout }, false, (connection, left) =>
      connection.transmit(bytes, { ...rest, timeout: left }),
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
   * Messages of the peer in batches, across connections: see {@link RingConnection.batches}. It ends when the
   * client closes. For a consumer that is busy while connections come and go, what had arrived on the last 16 is kept.
   */
  batches(options: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#current.batches('batches', options)
  }

  /** {@link batches} without the copies: see {@link RingConnection.viewBatches}. */
  viewBatches(options: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#current.batches('viewBatches', options)
  }

  /**
   * Runs `project` on each message of the peer, across connections: see {@link RingConnection.consume}. Calls that are
   * running when a connection is lost finish before those of the next connection begin; meanwhile, what arrived on the last
   * 16 is kept. It completes when the client closes.
   */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#current.observe((connection) => connection.consume(project, concurrency))
  }

  /** {@link consume} without the copies: see {@link RingConnection.consumeViews}. */
  consumeViews<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#current.observe((connection) => connection.consumeViews(project, concurrency))
  }

  /**
   * Closes the connection, gracefully unless `drain` is false, and does not reconnect. Idempotent; resolves when its
   * resources are free.
   * @throws UsageError for a bad timeout, nothing else
   */
  async close(options: CloseOptions = {}): Promise<void> {
    if (options.timeout !== undefined) milliseconds('timeout', options.timeout)
    this.#current.isClosing = true
    this.#reconnection.stop()
    this.#current.changed()
    await this.#current.connection?.close(options)
    await this.closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #handle(handler: RequestHandler | undefined, views: boolean): void {
    this.#handler = handler
    this.#takesViews = views
    const { connection } = this.#current
    if (connection !== undefined) this.#handOn(connection)
  }

  #handOn(connection: RingConnection): void {
    if (this.#takesViews) connection.handleViews(this.#handler)
    else connection.handle(this.#handler)
  }

  #ended(): void {
    this.#forget()
    this.#current.changed()
    this.#connections.complete()
    this.#states.next({ state: 'closed', reason: this.#current.reason })
    this.#states.complete()
  }
}
