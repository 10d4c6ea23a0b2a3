import type { Histogram, RecordableHistogram } from 'node:perf_hooks'
import type { Context, MemoryRegion, ScatterGatherElement } from '@rdmakit/verbs'
import type { Observable, ObservableInput } from 'rxjs'
import { integerInRange } from '../base/integer-in-range.js'
import type { RingLink } from '../link/ring-link.js'
import { TYPE } from '../native.js'
import type { BatchOptions, RingBatch, RingMessage, RingView } from '../receiving/index.js'
import type { RequestOptions } from '../requests/requests.js'
import { connectFirst } from '../setup/connect.js'
import type { Session } from '../setup/handshake.js'
import type { ConnectOptions } from '../setup/options.js'
import type { RingOffer, TransmitOptions } from '../transfer/index.js'
import { inCallersContext } from '../transfer/progress.js'
import { Exchange } from './exchange.js'
import type { CloseOptions, CloseReason } from './lifecycle.js'
import type { ConnectionState } from './states.js'
import type { RingStatistics } from './statistics.js'

/** What a handler is told beside the request. */
export interface RequestContext {
  /** the connection that the request came by; what is to go to the peer that asked goes there */
  readonly connection: RingConnection
  /**
   * aborts, with the reason, when the connection ends before the request is answered: nobody waits for the answer.
   * That the caller gave up a request is not told: it may have been handled, and its answer is dropped.
   */
  readonly signal: AbortSignal
}

/** Answers requests: with bytes, or a promise of them, which are copied when the answer leaves. */
export type RequestHandler = (
  request: RingMessage,
  context: RequestContext,
) => Uint8Array | Promise<Uint8Array>

/**
 * A connection that carries messages both ways through rings of registered memory, in order, each
 * once. It keeps the event loop alive until it has ended, unless {@link unref} says that it is no reason to stay.
 *
 * Its callbacks (subscribers of its observables, the handler, `project` of {@link consume}) run in the context
 * (AsyncLocalStorage) in which it was made: where `connect` was called, or `listen` of its server. What is told of one
 * call, {@link drain} and `onProgress`, is told in the context of that call.
 */
export class RingConnection {
  /**
   * Messages of the peer, each in memory of its own: it is good for as long as anybody has it. While nobody subscribes
   * they wait in the ring, and a full ring stalls the peer. Completes when the connection ends, however it ends:
   * {@link closed} says why.
   */
  readonly messages: Observable<RingMessage>
  /**
   * {@link messages} without the copy: each is a view of the ring, readable until the subscriber's callback returns,
   * unless it is retained (see {@link RingMessage}). So what keeps it or comes to it later (`firstValueFrom`, `toArray`,
   * `delay`, an async callback) finds it released.
   */
  readonly views: Observable<RingMessage>
  /**
   * Large messages of the peer (see {@link transmit}), for an application that decides where they go, and
   * whether: while somebody subscribes, each is offered here and not read otherwise, and does not keep its
   * place among {@link messages}. Completes when the connection ends.
   *
   * Taking an offer rejects when the sender gives up or the connection breaks, and nobody looks at the promise
   * that an `async` subscriber returns: its rejection would end the process. Handle it, for instance
   * `offers.pipe(concatMap((offer) => take(offer).catch(log))).subscribe()`.
   */
  readonly offers: Observable<RingOffer>
  /** Settles once, when the connection has ended and its resources are free. Never rejects. */
  readonly closed: Promise<CloseReason>
  /** What the connection is doing, from the current state on. Completes after `closed` or `lost`. */
  readonly states: Observable<ConnectionState>
  readonly #exchange: Exchange<RingConnection>

  /** @internal */
  constructor(link: RingLink) {
    const exchange = new Exchange<RingConnection>(link, this)
    this.#exchange = exchange
    this.messages = link.scope.observe(exchange.inbox.observe('copies'))
    this.views = link.scope.observe(exchange.inbox.observe('views'))
    this.offers = exchange.transfers.offers
    this.closed = exchange.lifecycle.closed
    this.states = exchange.lifecycle.states
  }

  /**
   * Connects to a {@link RingServer}. Of several addresses the first that answers is taken.
   * @throws UsageError for a bad address or option; VerbsError ECONNREFUSED when nobody listens or the
   *   peer refuses, EPROTO when it is not a ring transport, ETIMEDOUT; the signal's reason
   */
  static async connect(
    uri: string | readonly string[],
    options: ConnectOptions = {},
  ): Promise<RingConnection> {
    return new RingConnection(await connectFirst(uri, options))
  }

  /** The device that the connection runs on. */
  get context(): Context {
    return this.#exchange.link.id.context
  }

  get localUri(): string {
    return this.#exchange.link.id.localUri
  }

  get peerUri(): string {
    return this.#exchange.link.id.peerUri
  }

  /** What the peer passed as `applicationData`. */
  get applicationData(): Uint8Array {
    return this.#exchange.link.peer.applicationData
  }

  /** The session and epoch that the connecting end named, the same at both ends; often none. */
  get session(): Session | undefined {
    return this.#exchange.link.peer.session
  }

  /**
   * 32 bytes that are the same at both ends of this connection and of no other: SHA-256 of the two handshakes, which
   * have the addresses and keys of both rings. A proof of who an end is that covers them is worth nothing on another
   * connection, so that nobody in between, with a connection to each end, can pass it on. They are no secret. Who
   * forwards every packet unchanged is no end of a connection, and is not noticed by them.
   */
  get channelBinding(): Uint8Array {
    return this.#exchange.link.channelBinding
  }

  /** bytes of the largest message that can be sent: half of the peer's ring less 16 */
  get maxMessageLength(): number {
    return this.#exchange.link.maxMessageLength
  }

  /** How messages are notified, both ways: what both devices can do. */
  get notification(): 'immediate' | 'send' {
    return this.#exchange.link.usesImmediate ? 'immediate' : 'send'
  }

  /** True until the connection is closing. */
  get isOpen(): boolean {
    return this.#exchange.isOpen
  }

  /**
   * Sends one message. It is copied, and leaves with all others of this turn of the event loop, at
   * {@link flush}, or when a batch is full (`batchFrames`, `batchBytes`).
   * @param immediate 32 bits of the application's that come with it, without a sign, default 0
   * @returns false when it was not taken because the peer's ring is full, or while something is claimed:
   *   wait for {@link writable}
   * @throws VerbsError EMSGSIZE above {@link maxMessageLength}, ESHUTDOWN when the connection is closing; UsageError when
   *   `immediate` is no whole number from 0 to 2^32 − 1
   */
  send(bytes: Uint8Array, immediate = 0): boolean {
    if (!this.#exchange.isOpen) throw this.#exchange.shut()
    if (immediate !== immediate >>> 0) integerInRange('immediate', immediate, 0, 0xffff_ffff)
    return this.#exchange.outbox.send(TYPE.data, 0, immediate, bytes)
  }

  /**
   * Sends as many of `messages` as there is room for, in order, and posts them at once.
   * @returns how many were taken
   * @throws as {@link send}; those before the one at fault are sent
   */
  sendBatch(messages: readonly Uint8Array[]): number {
    if (!this.#exchange.isOpen) throw this.#exchange.shut()
    let taken = 0
    try {
      for (const message of messages) {
        if (!this.#exchange.outbox.send(TYPE.data, 0, 0, message)) break
        taken++
      }
    } finally {
      this.#exchange.outbox.flushScheduled()
    }
    return taken
  }

  /**
   * Room for a message of `length` bytes where it will be sent from: write it there, then {@link commit}.
   * Nothing is copied on the way to the device. One claim at a time; what others send meanwhile waits.
   * The memory holds what it held before, not zeros.
   * @returns undefined when there is no room: wait for {@link writable}
   * @throws as {@link send}; UsageError when something is claimed already
   */
  claim(length: number): Uint8Array | undefined {
    const at = this.place(length)
    return at < 0 ? undefined : this.#exchange.link.outgoing.subarray(at, at + length)
  }

  /**
   * {@link claim} for a program that allocates nothing: the offset of the room in {@link outgoing}.
   * @returns −1 when there is no room
   */
  place(length: number): number {
    if (!this.#exchange.isOpen) throw this.#exchange.shut()
    return this.#exchange.outbox.claim(length)
  }

  /** The memory that messages are sent from. Only what is claimed may be written. */
  get outgoing(): Uint8Array {
    return this.#exchange.link.outgoing
  }

  /**
   * Sends what was claimed, or its first `length` bytes.
   * @param immediate as for {@link send}
   * @throws UsageError when nothing is claimed or less than `length`, or for an `immediate` as {@link send}, and what is
   *   claimed stays so; VerbsError ESHUTDOWN
   */
  commit(immediate = 0, length = this.#exchange.outbox.claimed): void {
    this.#exchange.requireOpen()
    if (immediate !== immediate >>> 0) integerInRange('immediate', immediate, 0, 0xffff_ffff)
    this.#exchange.outbox.commit(length, immediate)
  }

  /** Gives up what was claimed. @throws UsageError when nothing is */
  abort(): void {
    this.#exchange.outbox.abort()
  }

  /**
   * Takes what has come, for a program that polls: `callback` gets each message as a view that is used
   * again for the next, and nothing is allocated. In mode `caller` it takes completions too; what comes
   * for other connections of the poller goes to them.
   * @param limit messages and events to take at most, default 256
   * @returns how many messages `callback` got
   * @throws UsageError when messages are taken in another way already, or from within a callback
   */
  drain(callback: (message: RingView) => void, limit = 256): number {
    // What came before the first call is before what comes now.
    this.#exchange.begin()
    return this.#exchange.inbox.drain(callback, limit, this.#exchange.link)
  }

  /**
   * Messages in batches: all that have arrived, when the next batch is asked for, each in memory of its own. A consumer
   * that takes its time stalls the sender: what it has not asked for stays in the ring. It ends when the connection does.
   * @throws UsageError when messages are taken in another way already; the signal's reason
   */
  batches({ limit = 256, signal }: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#exchange.inbox.batches('copies', integerInRange('limit', limit, 1, 65_536), signal)
  }

  /** {@link batches} without the copies: messages are views of the ring, readable until the next batch is asked for. */
  viewBatches({ limit = 256, signal }: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#exchange.inbox.batches('views', integerInRange('limit', limit, 1, 65_536), signal)
  }

  /**
   * Runs `project` on each message, on at most `concurrency` (default 1, at most 65536) at a time, and
   * gives what comes of it. Each is in memory of its own. The next is taken when what `project` returned, a promise or
   * an observable, has completed, so a slow consumer stops the sender and what waits takes no memory but the ring's. It
   * completes when the connection ends and errors when `project` fails.
   */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#exchange.consume('copies', project, concurrency)
  }

  /**
   * {@link consume} without the copies: a message is a view of the ring, readable until what `project` returned has
   * completed; only then is its part of the ring given back.
   */
  consumeViews<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#exchange.consume('views', project, concurrency)
  }

  /** Posts what was sent in this turn now. */
  flush(): void {
    this.#exchange.outbox.flushScheduled()
  }

  /**
   * Resolves when a message is likely to be taken again; at once when none was refused.
   * @throws VerbsError ESHUTDOWN or what ended the connection; the signal's reason
   */
  async writable({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    signal?.throwIfAborted()
    this.#exchange.requireOpen()
    await this.#exchange.outbox.writable(signal)
  }

  /**
   * Sends a message of any length, and waits until the peer has it. Up to `rendezvousThreshold` it goes
   * through the ring as with {@link send}, in parts where it is longer than a frame, and has been taken when this
   * resolves. Above, the peer reads it
   * from where it is by RDMA READ: without being asked, to its {@link messages} and in its place among them,
   * or when it takes it from its {@link offers}. At most 64 are offered at a time; more wait.
   *
   * The bytes must stay as they are until this settles. They are registered for the time of the transfer: above
   * 4 MiB on another thread, while what is sent behind them waits ({@link send} finds no room). A slice of a region of
   * {@link allocate} needs none of that. Nothing is kept registered for the next time without being asked, for the
   * peer can read it as long.
   * @throws VerbsError ETIMEDOUT, ECONNRESET when the connection breaks, ECANCELED when it is closed,
   *   ESHUTDOWN when it is closing, ENOMEM when the bytes cannot be registered; RemoteError when the peer
   *   does not want it, EMSGSIZE when it is more than it takes; UsageError for bytes that cannot be
   *   registered or a region that is not of this connection; the signal's reason. When it rejects, the peer
   *   may still read the memory until it has noticed, but keeps nothing of it.
   */
  async transmit(message: Uint8Array | ScatterGatherElement, options: TransmitOptions = {}): Promise<void> {
    this.#exchange.requireOpen()
    integerInRange('immediate', options.immediate ?? 0, 0, 0xffff_ffff)
    await this.#exchange.transfers.transmit(message, inCallersContext(options))
  }

  /**
   * Registered memory of this connection, to {@link transmit} from and to take {@link offers} into: what is
   * sent again and again needs no registration each time. The peer can read all of it from the first
   * transmit until the region is closed, as it is with the connection.
   * @param length bytes, rounded up to whole pages
   * @throws VerbsError ENOMEM, ESHUTDOWN when the connection is closing
   */
  async allocate(length: number): Promise<MemoryRegion> {
    this.#exchange.requireOpen()
    return await this.#exchange.transfers.allocate(length)
  }

  /**
   * Sends a request and waits for the response, which is in memory of its own. Either is at most as long as the
   * `maxMessageSize` of the end that gets it. `bytes` are free when this returns.
   * While the peer has as many requests to answer as it takes (see {@link handle}), this one waits here, in the order
   * of the calls, and messages that are sent meanwhile go before it.
   * @param options timeout in milliseconds, default 5000
   * @throws RemoteError when the peer's handler fails; VerbsError ETIMEDOUT, ECONNRESET when the
   *   connection breaks, EMSGSIZE, ESHUTDOWN; the signal's reason
   */
  request(bytes: Uint8Array, options: RequestOptions = {}): Promise<Uint8Array> {
    return this.#exchange.request(bytes, options)
  }

  /**
   * Answers the peer's requests with `handler`, in place of an earlier one. What it throws goes to the
   * peer as a {@link RemoteError} with its `code` and message. Without a handler requests fail with ENOSYS.
   *
   * The handler gets each request in memory of its own, so that it may take its time: nothing that comes behind waits
   * for it. Requests that are not answered take at most 64 times this end's `capacity`, 64 MiB at most, where each
   * counts for its bytes and 1536; beyond that the peer keeps its requests to itself until others are answered.
   */
  handle(handler: RequestHandler | undefined): void {
    this.#exchange.requests.responder.handle(handler, false)
  }

  /**
   * {@link handle} without the copy: a request is a view of the ring, see {@link RingMessage.data}, and is readable
   * until the handler returns, not until its promise settles. One that is retained longer stops the ring behind it.
   */
  handleViews(handler: RequestHandler | undefined): void {
    this.#exchange.requests.responder.handle(handler, true)
  }

  /** @internal requests wait for a handler until `owner` has settled */
  expectHandler(owner: PromiseLike<unknown>): void {
    this.#exchange.requests.responder.expect(owner)
  }

  /** What the connection has done and is doing; after its end, what it had done. */
  statistics(): RingStatistics {
    return this.#exchange.statistics()
  }

  /**
   * Nanoseconds from each request of this end to its response, 1 to an hour, within 1 %; `percentile(50)`,
   * `percentile(99.9)`, `max` and so on. Measured from the first time that it is looked at: before that it
   * costs nothing.
   */
  get requestLatency(): Histogram {
    return this.measure()
  }

  /** @internal {@link requestLatency} to add to others */
  measure(): RecordableHistogram {
    return this.#exchange.requests.measure()
  }

  /** Keeps the event loop alive until the connection has ended, which is so unless {@link unref} was called. */
  ref(): this {
    this.#exchange.link.referenced = true
    return this
  }

  /** The connection is no reason for the program to stay: it exits when nothing else is, without closing it. */
  unref(): this {
    this.#exchange.link.referenced = false
    return this
  }

  /** Ends the connection. Idempotent; resolves when its resources are free. @throws UsageError for a bad timeout only */
  close(options: CloseOptions = {}): Promise<void> {
    return this.#exchange.lifecycle.close(options)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** @internal @see Lifecycle.abandon */
  abandon(epoch: number): Promise<void> {
    return this.#exchange.lifecycle.abandon(epoch)
  }
}
