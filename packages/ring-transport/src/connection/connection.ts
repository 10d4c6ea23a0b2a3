import type { Histogram, RecordableHistogram } from 'node:perf_hooks'
import type { Context, MemoryRegion, ScatterGatherElement } from '@rdmakit/verbs'
import type { Observable, ObservableInput } from 'rxjs'
import type { RingLink } from '../link/ring-link.js'
import { TYPE } from '../native.js'
import type { BatchOptions, RingBatch, RingMessage, RingView } from '../receiving/index.js'
import { connectFirst } from '../setup/connect.js'
import type { Session } from '../setup/handshake.js'
import type { ConnectOptions } from '../setup/options.js'
import type { RingOffer, TransmitOptions } from '../transfer/index.js'
import { type CloseOptions, checkedLimit, checkImmediate, type RequestOptions } from './call-options.js'
import { Exchange } from './exchange.js'
import type { CloseReason, ConnectionState } from './states.js'
import type { RingStatistics } from './statistics.js'

/** What a handler gets in addition to the request. */
export interface RequestContext {
  /** the connection of the request: use it to send something to the requester */
  readonly connection: RingConnection
  /**
   * aborts, with the reason, when the connection ends before the request is answered. It does not abort when the caller
   * gives up: the answer is then dropped on arrival.
   */
  readonly signal: AbortSignal
}

/** Answers requests with bytes, or a promise of them, which may change once they are sent ({@link RingConnection.send}). */
export type RequestHandler = (
  request: RingMessage,
  context: RequestContext,
) => Uint8Array | Promise<Uint8Array>

/**
 * A connection that carries messages in both directions through rings of registered memory, in order, each exactly once.
 * It keeps the event loop alive until it has ended, unless {@link unref} was called.
 *
 * Its callbacks (subscribers of its observables, the handler, `project` of {@link consume}) run in the context
 * (AsyncLocalStorage) in which it was created: by `connect`, or by `listen` of its server. The callback of {@link drain}
 * and `onProgress` run in the context of their call.
 */
export class RingConnection {
  /**
   * Messages of the peer, each a copy that stays valid. Without a subscriber they wait in the ring, and a full ring stalls
   * the peer. Completes when the connection ends, for any reason; {@link closed} has the reason.
   */
  readonly messages: Observable<RingMessage>
  /**
   * {@link messages} without the copy: each is a view of the ring, readable until the subscriber's callback returns,
   * unless it is retained (see {@link RingMessage}). So code that reads it later (`firstValueFrom`, `toArray`, `delay`,
   * an async callback) finds it released.
   */
  readonly views: Observable<RingMessage>
  /**
   * Large messages of the peer (see {@link transmit}), for an application that decides whether to read them, and where to.
   * While there is a subscriber, each is offered only here and is not read by itself, and it has no place among
   * {@link messages}. Completes when the connection ends.
   *
   * Accepting an offer rejects when the sender gives up or the connection breaks. The promise of an `async` subscriber
   * is ignored, so its rejection would end the process. Handle it, for instance
   * `offers.pipe(concatMap((offer) => take(offer).catch(log))).subscribe()`.
   */
  readonly offers: Observable<RingOffer>
  /** Settles once, when the connection has ended and its resources are free. Never rejects. */
  readonly closed: Promise<CloseReason>
  /** The connection's states, beginning with the current one. Completes after `closed` or `lost`. */
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
   * Connects to a {@link RingServer}, at the first of several addresses that answers.
   * @throws UsageError for a bad address or option; VerbsError ECONNREFUSED when nothing listens or the
   * peer refuses, EPROTO when it is not a ring transport, ETIMEDOUT; the signal's reason
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

  /** The session and epoch that the connecting end chose, the same at both ends; undefined if it chose none. */
  get session(): Session | undefined {
    return this.#exchange.link.peer.session
  }

  /**
   * 32 bytes that both ends of this connection have, and no other connection: the SHA-256 of the two handshakes, which
   * contain the addresses and keys of both rings. An authentication proof that covers them is invalid on another
   * connection, so a man in the middle with a connection to each end cannot relay it. They are not secret. They do not
   * detect a machine that forwards every packet unchanged, because it is not an end of a connection.
   */
  get channelBinding(): Uint8Array {
    return this.#exchange.link.channelBinding
  }

  /** bytes of the largest message that can be sent: half of the peer's ring less 16 */
  get maxMessageLength(): number {
    return this.#exchange.link.maxMessageLength
  }

  /** How messages are notified, in both directions: what both devices support. */
  get notification(): 'immediate' | 'send' {
    return this.#exchange.link.usesImmediate ? 'immediate' : 'send'
  }

  /** True until the connection is closing. */
  get isOpen(): boolean {
    return this.#exchange.isOpen
  }

  /**
   * Sends one message. It is copied, and sent with all others of this turn of the event loop, at
   * {@link flush}, or when a batch is full (`batchFrames`, `batchBytes`). One that fills a batch by itself leaves at once,
   * where the device can from where it is: no other thread may write to it meanwhile (requests and answers too). When this
   * returns it may change.
   * @param immediate 32 bits of the application, unsigned, default 0
   * @returns false when it was not accepted because the peer's ring is full, or while a claim is open:
   *   wait for {@link writable}
   * @throws VerbsError EMSGSIZE above {@link maxMessageLength}, ESHUTDOWN when the connection is closing; UsageError when
   *   `immediate` is not a whole number from 0 to 2^32 − 1
   */
  send(bytes: Uint8Array, immediate = 0): boolean {
    if (!this.#exchange.isOpen) throw this.#exchange.shut()
    if (immediate !== immediate >>> 0) checkImmediate(immediate)
    return this.#exchange.outbox.send(TYPE.data, 0, immediate, bytes)
  }

  /**
   * Sends as many of `messages` as there is room for, in order, and posts them at once.
   * @returns how many were accepted
   * @throws as {@link send}; messages before the failing one are sent
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
   * Room for a message of `length` bytes in the memory that it is sent from: write it there, then {@link commit}. Nothing
   * is copied on the way to the device. Only one claim may be open; messages sent meanwhile wait. The memory is not
   * zeroed.
   * @returns undefined when there is no room: wait for {@link writable}
   * @throws as {@link send}; UsageError when a claim is open
   */
  claim(length: number): Uint8Array | undefined {
    const at = this.place(length)
    return at < 0 ? undefined : this.#exchange.link.outgoing.subarray(at, at + length)
  }

  /**
   * {@link claim} without an allocation: returns the offset of the room in {@link outgoing}.
   * @returns −1 when there is no room
   */
  place(length: number): number {
    if (!this.#exchange.isOpen) throw this.#exchange.shut()
    return this.#exchange.outbox.claim(length)
  }

  /** The memory that messages are sent from. Write only to the claimed part. */
  get outgoing(): Uint8Array {
    return this.#exchange.link.outgoing
  }

  /**
   * Sends the claimed bytes, or the first `length` of them.
   * @param immediate as for {@link send}
   * @throws UsageError when nothing is claimed or less than `length`, or for an `immediate` as {@link send}, and what is
   *   claimed stays so; VerbsError ESHUTDOWN
   */
  commit(immediate = 0, length = this.#exchange.outbox.claimed): void {
    this.#exchange.requireOpen()
    if (immediate !== immediate >>> 0) checkImmediate(immediate)
    this.#exchange.outbox.commit(length, immediate)
  }

  /** Discards the claim. @throws UsageError when there is none */
  abort(): void {
    this.#exchange.outbox.abort()
  }

  /**
   * Receives messages in a program that polls: `callback` gets each message as a view that is reused for the next, and
   * nothing is allocated. In mode `caller` it also polls for completions, and delivers those of the poller's other
   * connections to them.
   * @param limit maximum number of messages and events, 0 … 2^32 − 1, default 256
   * @returns how many messages `callback` got
   * @throws UsageError when messages are taken in another way already, from within a callback, or for a bad limit
   */
  drain(callback: (message: RingView) => void, limit = 256): number {
    // Earlier arrivals are delivered before later ones.
    this.#exchange.begin()
    return this.#exchange.inbox.drain(callback, limit, this.#exchange.link)
  }

  /**
   * Messages in batches: all that have arrived when the next batch is requested, each a copy. A slow consumer stalls the
   * sender, because messages stay in the ring until they are requested. It ends when the connection ends.
   * @throws UsageError when messages are taken in another way already; the signal's reason
   */
  batches({ limit = 256, signal }: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#exchange.inbox.batches('copies', checkedLimit(limit), signal)
  }

  /** {@link batches} without the copies: messages are views of the ring, readable until the next batch is requested. */
  viewBatches({ limit = 256, signal }: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#exchange.inbox.batches('views', checkedLimit(limit), signal)
  }

  /**
   * Runs `project` on each message, on at most `concurrency` (default 1, at most 65536) at a time, and
   * emits the results. Each message is a copy. The next one is taken when the promise or observable that `project`
   * returned has completed, so a slow consumer stalls the sender, and waiting messages use no memory besides the ring.
   * It completes when the connection ends and errors when `project` fails.
   */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#exchange.consume('copies', project, concurrency)
  }

  /**
   * {@link consume} without the copies: a message is a view of the ring, readable until the promise or observable of
   * `project` has completed; only then is its part of the ring freed.
   */
  consumeViews<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#exchange.consume('views', project, concurrency)
  }

  /** Posts what was sent in this turn now. */
  flush(): void {
    this.#exchange.outbox.flushScheduled()
  }

  /**
   * Resolves when a message is likely to be accepted again; at once if none was refused.
   * @throws VerbsError ESHUTDOWN or what ended the connection; the signal's reason
   */
  async writable({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    signal?.throwIfAborted()
    this.#exchange.requireOpen()
    await this.#exchange.outbox.writable(signal)
  }

  /**
   * Sends a message of any length, and waits until the peer has it. Up to `rendezvousThreshold` it goes
   * through the ring as with {@link send}, in parts if it is longer than a frame, and has been consumed when this
   * resolves. A longer message is read by the peer from its place by RDMA READ: either by itself, into its
   * {@link messages} and in order, or when its application accepts it from {@link offers}. At most 64 are offered at a
   * time; further ones wait.
   *
   * The bytes must not change until this settles. Do not transfer their ArrayBuffer either: its new owner may free it while
   * the peer reads, which crashes the process. They are registered for the duration of the transfer: above 4 MiB on
   * another thread, while later messages wait ({@link send} finds no room). A slice of a region of {@link allocate}
   * needs no registration. Registrations are not cached, because the peer can read the memory as long as they last.
   * @throws VerbsError ETIMEDOUT, ECONNRESET when the connection breaks, ECANCELED when it is closed,
   *   ESHUTDOWN when it is closing, ENOMEM when the bytes cannot be registered; RemoteError when the peer
   * refuses it, EMSGSIZE when it exceeds the peer's limit; UsageError for bytes that cannot be registered or a
   * region that does not belong to this connection; the signal's reason. After a rejection the peer may still read
   * the memory until it learns of it, but keeps nothing of it.
   */
  async transmit(message: Uint8Array | ScatterGatherElement, options: TransmitOptions = {}): Promise<void> {
    this.#exchange.requireOpen()
    checkImmediate(options.immediate ?? 0)
    await this.#exchange.transfers.transmit(message, options)
  }

  /**
   * Registered memory of this connection, to {@link transmit} from and to accept {@link offers} into, without registering
   * it each time. The peer can read all of it from the first transmit until the region is closed, at the latest with
   * the connection.
   * @param length bytes, rounded up to whole pages
   * @throws VerbsError ENOMEM, ESHUTDOWN when the connection is closing
   */
  async allocate(length: number): Promise<MemoryRegion> {
    this.#exchange.requireOpen()
    return await this.#exchange.transfers.allocate(length)
  }

  /**
   * Sends a request and waits for the response, a copy. Both may be as long as the `maxMessageSize` of their receiver. You
   * may reuse `bytes` when this returns. While unanswered requests fill the peer's memory for them (see {@link handle}),
   * further ones wait here, in the order of the calls, and messages sent meanwhile overtake them.
   * @param options timeout in milliseconds, default 5000
   * @throws RemoteError when the peer's handler fails; VerbsError ETIMEDOUT, ECONNRESET when the
   *   connection breaks, EMSGSIZE, ESHUTDOWN; the signal's reason
   */
  request(bytes: Uint8Array, options: RequestOptions = {}): Promise<Uint8Array> {
    return this.#exchange.requests.request(bytes, options, this.#exchange)
  }

  /**
   * Answers the peer's requests with `handler`, which replaces an earlier one. The peer gets an error that the handler
   * throws as a {@link RemoteError} with its `code` and message. Without a handler requests fail with ENOSYS.
   *
   * The handler gets a copy of each request and may take its time: later messages do not wait for it. Unanswered
   * requests take at most 64 times this end's `capacity`, and at most 64 MiB, where each counts for its bytes plus 1536;
   * the peer holds back further requests until others are answered.
   */
  handle(handler: RequestHandler | undefined): void {
    this.#exchange.requests.responder.handle(handler, false)
  }

  /**
   * {@link handle} without the copy: a request is a view of the ring (see {@link RingMessage.data}), readable until the
   * handler returns, not until its promise settles. A request that is retained longer stops the ring behind it.
   */
  handleViews(handler: RequestHandler | undefined): void {
    this.#exchange.requests.responder.handle(handler, true)
  }

  /** @internal requests wait for a handler until `owner` has settled */
  expectHandler(owner: PromiseLike<unknown>): void {
    this.#exchange.requests.responder.expect(owner)
  }

  /** Bytes of both rings here, the peer's requests that are not answered, and answers that it does not take. */
  get memory(): number {
    return this.#exchange.memory
  }

  /** The connection's counters and current state; after its end, the final counters. */
  statistics(): RingStatistics {
    return this.#exchange.statistics()
  }

  /**
   * Nanoseconds from each request of this end to its response, 1 to an hour, within 1 %; `percentile(50)`,
   * `percentile(99.9)`, `max` and so on. Recorded from the first access on; before that it costs nothing.
   */
  get requestLatency(): Histogram {
    return this.measure()
  }

  /** @internal {@link requestLatency} to add to others */
  measure(): RecordableHistogram {
    return this.#exchange.requests.pending.measure()
  }

  /** Keeps the event loop alive until the connection has ended (the default): undoes {@link unref}. */
  ref(): this {
    this.#exchange.link.referenced = true
    return this
  }

  /** The connection no longer keeps the program alive: if nothing else does, the program exits without closing it. */
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
