import type { Histogram, RecordableHistogram } from 'node:perf_hooks'
import {
  ConnectionId,
  type Context,
  deferred,
  type MemoryRegion,
  type ScatterGatherElement,
  UsageError,
  VerbsError,
  type WaitOptions,
  within,
} from '@rdmakit/verbs'
import { type Observable, type ObservableInput, ReplaySubject } from 'rxjs'
import type { RingBatch } from './batch.js'
import { decodeError } from './errors.js'
import type { Session } from './handshake.js'
import { Inbox } from './inbox.js'
import { Link, type LinkSink } from './link.js'
import { Liveness } from './liveness.js'
import type { RingMessage, RingView } from './message.js'
import { SEND, TYPE } from './native.js'
import { type ConnectOptions, type Settings, settings, whole } from './options.js'
import { Outbox } from './outbox.js'
import { PendingRequests } from './requests.js'
import { type RequestHandler, Responder } from './responder.js'
import type { ConnectionState } from './states.js'
import { latencyHistogram, type NativeCounter, type RingStatistics, share } from './statistics.js'
import type { RingOffer } from './transfer/offer.js'
import type { TransmitOptions } from './transfer/outgoing.js'
import { Transfers } from './transfer/transfers.js'

/** Why a connection ended: `undefined` when one of the ends closed it in good order. */
export type CloseReason = VerbsError | undefined

export interface RequestOptions extends WaitOptions {
  /** 32 bits for the peer's handler, which sees them as {@link RingMessage.immediate}; default 0 */
  readonly immediate?: number
}

export interface BatchOptions {
  /** messages in a batch at most, 1 … 65536, default 256 */
  readonly limit?: number
  /** ends the iteration with its reason */
  readonly signal?: AbortSignal
}

export interface CloseOptions {
  /**
   * Let what is under way finish (default): requests, handlers, messages on their way, and the peer's
   * too. False breaks the connection at once.
   */
  readonly drain?: boolean
  /** how long draining may take, milliseconds, default 5000; then the connection is broken */
  readonly timeout?: number
}

const DEFAULT_TIMEOUT_MS = 5_000
const EMPTY = new Uint8Array()

/**
 * A connection that carries messages both ways through rings of registered memory, in order, each
 * once. It keeps the event loop alive until it is closed.
 */
export class RingConnection {
  /**
   * Messages of the peer. Each is readable until the subscriber's callback returns, unless it is
   * retained (see {@link RingMessage}). While nobody subscribes they wait in the ring, and a full ring
   * stalls the peer. Completes when the connection ends, however it ends: {@link closed} says why.
   */
  readonly messages: Observable<RingMessage>
  /**
   * Large messages of the peer (see {@link transmit}), for an application that decides where they go, and
   * whether: while somebody subscribes, each is offered here and not read otherwise, and does not keep its
   * place among {@link messages}. Completes when the connection ends.
   */
  readonly offers: Observable<RingOffer>
  /** Settles once, when the connection has ended and its resources are free. Never rejects. */
  readonly closed: Promise<CloseReason>
  /** What the connection is doing, from the current state on. Completes after `closed` or `lost`. */
  readonly states: Observable<ConnectionState>
  readonly #closed = deferred<CloseReason>()
  readonly #link: Link
  readonly #inbox: Inbox
  readonly #requests: PendingRequests
  readonly #outbox: Outbox
  readonly #responder: Responder
  readonly #peerClosed = deferred<void>()
  readonly #states = new ReplaySubject<ConnectionState>(1)
  readonly #liveness: Liveness
  readonly #transfers: Transfers
  #state: 'open' | 'closing' | 'ended' = 'open'
  #peerHasClosed = false
  #ending: Promise<void> | undefined
  #failure: VerbsError | undefined

  /** @internal */
  constructor(link: Link) {
    this.#link = link
    this.#inbox = new Inbox(link.copies)
    this.#requests = new PendingRequests(link.id.description)
    const failed = () => {
      const reason = this.#reset('the queue pair takes no more')
      this.#lost(reason)
      return reason
    }
    this.#outbox = new Outbox(link, failed)
    this.#responder = new Responder((type, correlation, bytes) =>
      this.#outbox.post({ type, correlation }, bytes),
    )
    this.#transfers = new Transfers(
      {
        object: link.id.description,
        protectionDomain: link.protectionDomain,
        debug: link.debug,
        post: (frame, bytes, wanted) => this.#outbox.post(frame, bytes, wanted),
        send: ({ type, correlation = 0, immediate = 0 }, bytes) =>
          this.#outbox.send(type, correlation, immediate, bytes),
        read: (...read) => link.read(...read),
        hold: () => this.#inbox.hold(),
        fail: (reason) => this.#lost(reason),
        keep: () => link.keep(),
      },
      link.transfers,
    )
    this.offers = this.#transfers.offers
    this.closed = this.#closed.promise
    this.states = this.#states.asObservable()
    this.#states.next({ state: 'open', epoch: this.#epoch })
    this.messages = this.#inbox.observe()
    const sink: LinkSink = {
      message: (type, message) => this.#receive(type, message),
      writable: (room) => this.#outbox.onWritable(room),
      read: (tag, status) => this.#transfers.onRead(tag, status),
      broken: (reason) => this.#lost(reason),
    }
    this.#liveness = new Liveness(link.liveness, {
      heard: () => link.heard(),
      activity: () => link.activity(),
      busy: () =>
        this.#requests.count + this.#responder.running + this.#inbox.waiting + this.#transfers.count > 0,
      ping: () => link.ping() === SEND.failed && failed(),
      dead: (silence) => this.#lost(this.#silent(silence)),
      idle: (isIdle) => this.#rest(isIdle),
    })
    this.#liveness.start()
    // The owner first gets a turn to subscribe and to set a handler.
    setImmediate(() => link.start(sink))
    void link.id.disconnected.then((reason) => this.#lost(reason ?? this.#reset('the peer vanished')))
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
    const chosen = settings(options)
    const uris = typeof uri === 'string' ? [uri] : uri
    if (uris.length === 0) throw new UsageError('connect needs an address')
    const failures: unknown[] = []
    for (const one of uris) {
      options.signal?.throwIfAborted()
      try {
        return await RingConnection.#connectOne(one, chosen)
      } catch (failure) {
        failures.push(failure)
      }
    }
    throw failures.length === 1
      ? failures[0]
      : new AggregateError(failures, `none of ${uris.join(', ')} connects`)
  }

  static async #connectOne(uri: string, chosen: Settings): Promise<RingConnection> {
    const id = await ConnectionId.resolve(uri, chosen.wait)
    return new RingConnection(await Link.connect(id, chosen))
  }

  /** The device that the connection runs on. */
  get context(): Context {
    return this.#link.id.context
  }

  get localUri(): string {
    return this.#link.id.localUri
  }

  get peerUri(): string {
    return this.#link.id.peerUri
  }

  /** What the peer passed as `applicationData`. */
  get applicationData(): Uint8Array {
    return this.#link.peer.applicationData
  }

  /** The session and epoch that the connecting end named, the same at both ends; often none. */
  get session(): Session | undefined {
    return this.#link.peer.session
  }

  /** bytes of the largest message that can be sent: half of the peer's ring less 16 */
  get maxMessageLength(): number {
    return this.#link.maxMessageLength
  }

  /** How messages are notified, both ways: what both devices can do. */
  get notification(): 'immediate' | 'send' {
    return this.#link.usesImmediate ? 'immediate' : 'send'
  }

  /** True until the connection is closing. */
  get isOpen(): boolean {
    return this.#state === 'open'
  }

  /**
   * Sends one message. It is copied, and leaves with all others of this turn of the event loop, at
   * {@link flush}, or when a batch is full (`batchFrames`, `batchBytes`).
   * @param immediate 32 bits of the application's that come with it, without a sign, default 0
   * @returns false when it was not taken because the peer's ring is full, or while something is claimed:
   *   wait for {@link writable}
   * @throws VerbsError EMSGSIZE above {@link maxMessageLength}, ESHUTDOWN when the connection is closing
   */
  send(bytes: Uint8Array, immediate = 0): boolean {
    if (this.#state !== 'open') throw this.#shut()
    return this.#outbox.send(TYPE.data, 0, immediate, bytes)
  }

  /**
   * Sends as many of `messages` as there is room for, in order, and posts them at once.
   * @returns how many were taken
   * @throws as {@link send}; those before the one at fault are sent
   */
  sendBatch(messages: readonly Uint8Array[]): number {
    if (this.#state !== 'open') throw this.#shut()
    let taken = 0
    try {
      for (const message of messages) {
        if (!this.#outbox.send(TYPE.data, 0, 0, message)) break
        taken++
      }
    } finally {
      this.#outbox.flushScheduled()
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
    return at < 0 ? undefined : this.#link.lane.bytes.subarray(at, at + length)
  }

  /**
   * {@link claim} for a program that allocates nothing: the offset of the room in {@link outgoing}.
   * @returns −1 when there is no room
   */
  place(length: number): number {
    if (this.#state !== 'open') throw this.#shut()
    return this.#outbox.claim(length)
  }

  /** The memory that messages are sent from. Only what is claimed may be written. */
  get outgoing(): Uint8Array {
    return this.#link.lane.bytes
  }

  /**
   * Sends what was claimed, or its first `length` bytes.
   * @param immediate as for {@link send}
   * @throws UsageError when nothing is claimed or less than `length`; VerbsError ESHUTDOWN
   */
  commit(immediate = 0, length = this.#outbox.claimed): void {
    if (this.#state !== 'open') throw this.#shut()
    this.#outbox.commit(TYPE.data, length, immediate)
  }

  /** Gives up what was claimed. @throws UsageError when nothing is */
  abort(): void {
    this.#outbox.abort()
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
    return this.#inbox.drain(callback, limit, this.#link)
  }

  /**
   * Messages in batches: all that have arrived, when the next batch is asked for. They are readable until
   * then. A consumer that takes its time stalls the sender, not this process's memory. It ends when the
   * connection does.
   * @throws UsageError when messages are taken in another way already; the signal's reason
   */
  batches({ limit = 256, signal }: BatchOptions = {}): AsyncGenerator<RingBatch, void, void> {
    return this.#inbox.batches(whole('limit', limit, 1, 65_536), signal)
  }

  /**
   * Runs `project` on each message, on at most `concurrency` (default 1, at most 65536) at a time, and
   * gives what comes of it. A message is readable until what `project` returned, a promise or an
   * observable, has completed; only then is its part of the ring given back, so a slow consumer stops the
   * sender and what waits takes no memory but the ring's. It completes when the connection ends and
   * errors when `project` fails.
   */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency = 1): Observable<T> {
    return this.#inbox.consume(project, whole('concurrency', concurrency, 1, 65_536))
  }

  /** Posts what was sent in this turn now. */
  flush(): void {
    this.#outbox.flushScheduled()
  }

  /**
   * Resolves when a message is likely to be taken again; at once when none was refused.
   * @throws VerbsError ESHUTDOWN or what ended the connection; the signal's reason
   */
  async writable({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    signal?.throwIfAborted()
    this.#requireOpen()
    const writable = this.#outbox.writable()
    if (signal === undefined) return writable
    const aborted = deferred<never>()
    const abort = () => aborted.reject(signal.reason)
    signal.addEventListener('abort', abort, { once: true })
    try {
      await Promise.race([writable, aborted.promise])
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }

  /**
   * Sends a message of any length, and waits until the peer has it. Up to `rendezvousThreshold` it goes
   * through the ring as with {@link send}, and has been taken when this resolves. Above, the peer reads it
   * from where it is by RDMA READ: without being asked, to its {@link messages} and in its place among them,
   * or when it takes it from its {@link offers}. At most 64 are offered at a time; more wait.
   *
   * The bytes must stay as they are until this settles. They are registered for the time of the transfer,
   * which takes a while for many; a slice of a region of {@link allocate} needs none of that.
   * @throws VerbsError ETIMEDOUT, ECONNRESET when the connection breaks, ECANCELED when it is closed,
   *   ESHUTDOWN when it is closing, ENOMEM when the bytes cannot be registered; RemoteError when the peer
   *   does not want it, EMSGSIZE when it is more than it takes; UsageError for bytes that cannot be
   *   registered or a region that is not of this connection; the signal's reason. When it rejects, the peer
   *   may still read the memory until it has noticed, but keeps nothing of it.
   */
  async transmit(message: Uint8Array | ScatterGatherElement, options: TransmitOptions = {}): Promise<void> {
    this.#requireOpen()
    whole('immediate', options.immediate ?? 0, 0, 0xffff_ffff)
    await this.#transfers.transmit(message, options)
  }

  /**
   * Registered memory of this connection, to {@link transmit} from and to take {@link offers} into: what is
   * sent again and again needs no registration each time. The peer can read all of it from the first
   * transmit until the region is closed, as it is with the connection.
   * @param length bytes, rounded up to whole pages
   * @throws VerbsError ENOMEM, ESHUTDOWN when the connection is closing
   */
  async allocate(length: number): Promise<MemoryRegion> {
    this.#requireOpen()
    return await this.#transfers.allocate(length)
  }

  /**
   * Sends a request and waits for the response, which is in memory of its own.
   * @param options timeout in milliseconds, default 5000
   * @throws RemoteError when the peer's handler fails; VerbsError ETIMEDOUT, ECONNRESET when the
   *   connection breaks, EMSGSIZE, ESHUTDOWN; the signal's reason
   */
  request(
    bytes: Uint8Array,
    { signal, timeout = DEFAULT_TIMEOUT_MS, immediate = 0 }: RequestOptions = {},
  ): Promise<Uint8Array> {
    try {
      signal?.throwIfAborted()
      this.#requireOpen()
      whole('immediate', immediate, 0, 0xffff_ffff)
    } catch (failure) {
      return Promise.reject(failure)
    }
    const { correlation, response } = this.#requests.add(timeout)
    const sent = () => this.#requests.sent(correlation)
    const fail = (reason: unknown) => this.#requests.reject(correlation, reason)
    const frame = { type: TYPE.request, correlation, immediate }
    const posted = this.#outbox.post(frame, bytes, () => this.#requests.has(correlation))
    if (posted === undefined) sent()
    else posted.then(sent, fail)
    if (signal === undefined) return response
    const abort = () => fail(signal.reason)
    signal.addEventListener('abort', abort, { once: true })
    return response.finally(() => signal.removeEventListener('abort', abort))
  }

  /**
   * Answers the peer's requests with `handler`, in place of an earlier one. What it throws goes to the
   * peer as a {@link RemoteError} with its `code` and message. Without a handler requests fail with ENOSYS.
   */
  handle(handler: RequestHandler | undefined): void {
    this.#responder.handler = handler
  }

  /** What the connection has done and is doing; after its end, what it had done. */
  statistics(): RingStatistics {
    const counters = this.#link.counters() as Record<NativeCounter, number>
    return {
      ...counters,
      framesSent: this.#outbox.frames,
      bytesSent: this.#outbox.bytes,
      inlineShare: share(counters.inlineRequests, counters.workRequests),
      requestsInFlight: this.#requests.count,
      requestsRunning: this.#responder.running,
      messagesWaiting: this.#inbox.waiting,
      transfersInFlight: this.#transfers.count,
      transferMemory: this.#transfers.memory,
    }
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
    this.#requests.latency ??= latencyHistogram()
    return this.#requests.latency
  }

  /** Ends the connection. Idempotent; resolves when its resources are free. Never rejects. */
  async close({ drain = true, timeout = DEFAULT_TIMEOUT_MS }: CloseOptions = {}): Promise<void> {
    this.#inbox.discard()
    if (!drain) await this.#end(undefined)
    else if (this.#state === 'open') await this.#shutdown(timeout, this.#peerClosed.promise)
    await this.closed
    this.#inbox.discard()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /**
   * @internal Breaks the connection because a later one of its session has come. When this resolves, nothing
   * of it is delivered any more, not even what had arrived.
   */
  async abandon(epoch: number): Promise<void> {
    const detail = `epoch ${epoch} of its session has come`
    this.#inbox.discard()
    this.#lost(new VerbsError('ESTALE', 'connection', this.#link.id.description, detail))
    await this.closed
    this.#inbox.discard()
  }

  // — receiving —

  #receive(type: number, message: RingMessage): void {
    if (this.#peerHasClosed && (type === TYPE.data || type === TYPE.request || type === TYPE.offer)) {
      message.release()
      void this.#end(
        new VerbsError('EPROTO', 'receive', this.#link.id.description, 'the peer sent after its close'),
      )
      return
    }
    switch (type) {
      case TYPE.data:
        this.#inbox.arrive(message)
        return
      case TYPE.request:
        this.#responder.answer(message)
        return
      case TYPE.response:
      case TYPE.error: {
        const known = this.#requests.answer(message.correlation, (pending) =>
          type === TYPE.response
            ? pending.resolve(message.copy())
            : pending.reject(decodeError(message.data)),
        )
        message.release()
        if (!known)
          void this.#end(
            new VerbsError(
              'EPROTO',
              'receive',
              this.#link.id.description,
              'the peer answered what nobody asked',
            ),
          )
        return
      }
      case TYPE.offer:
      case TYPE.settled:
        this.#transfers.receive(type, message)
        return
      case TYPE.close:
        message.release()
        this.#peerHasClosed = true
        this.#peerClosed.resolve()
        if (this.#state === 'open') void this.#shutdown(DEFAULT_TIMEOUT_MS, this.#link.id.disconnected)
    }
  }

  // — ending —

  /**
   * Both ends do the same: finish what is under way, send CLOSE, wait for the end of the other. Who
   * began waits for the peer's CLOSE and disconnects; the other waits for that, so that its own CLOSE
   * is not lost with the queue pair.
   */
  async #shutdown(timeout: number, other: Promise<unknown>): Promise<void> {
    this.#state = 'closing'
    this.#states.next({ state: 'draining', epoch: this.#epoch })
    const drain = async () => {
      await this.#requests.idle()
      await this.#responder.idle()
      await this.#transfers.idle()
      await this.#outbox.postLast(TYPE.close, EMPTY)
      await this.#outbox.drained()
      await other
    }
    try {
      await within(drain(), timeout, () => this.#reset('draining takes too long'))
      await this.#end(undefined)
    } catch (failure) {
      await this.#end(failure instanceof VerbsError ? failure : undefined)
    }
  }

  /**
   * The queue pair or the connection failed. Of several tidings of one failure, which come in any
   * order, the one that names a broken rule says most.
   */
  #lost(reason: VerbsError): void {
    if (this.#failure === undefined || reason.code === 'EPROTO') this.#failure = reason
    void this.#end(reason)
  }

  #end(reason: CloseReason): Promise<void> {
    this.#ending ??= this.#finish(reason)
    return this.#ending
  }

  async #finish(reason: CloseReason): Promise<void> {
    this.#state = 'ended'
    this.#liveness.stop()
    const lost = this.#failure !== undefined
    try {
      this.#link.id.disconnect()
    } catch {
      // It is disconnected already, which is what was wanted.
    }
    await this.#link.destroy()
    // All that had arrived has been received by now: the peer's CLOSE perhaps, after which a lost
    // connection is the end in good order, or what it did wrong.
    const latest = lost ? this.#failure : reason
    const final = lost && this.#peerHasClosed && latest?.code === 'ECONNRESET' ? undefined : latest
    const failure =
      final ?? new VerbsError('ECANCELED', 'request', this.#link.id.description, 'it was closed')
    this.#requests.rejectAll(failure)
    this.#outbox.end(failure)
    this.#transfers.end(failure)
    this.#peerClosed.resolve()
    const epoch = this.#epoch
    this.#states.next(
      final === undefined ? { state: 'closed', epoch } : { state: 'lost', epoch, reason: final },
    )
    this.#states.complete()
    this.#inbox.end()
    this.#closed.resolve(final)
  }

  #silent(milliseconds: number): VerbsError {
    const detail = `nothing was heard of the peer for ${Math.round(milliseconds)} ms`
    return new VerbsError('ETIMEDOUT', 'heartbeat', this.#link.id.description, detail)
  }

  /** The connection has become idle, or is so no longer. */
  #rest(isIdle: boolean): void {
    if (this.#state !== 'open') return
    this.#states.next({ state: isIdle ? 'idle' : 'open', epoch: this.#epoch })
    if (isIdle && this.#link.liveness.closeWhenIdle) void this.close()
  }

  get #epoch(): number {
    return this.#link.peer.session?.epoch ?? 0
  }

  #requireOpen(): void {
    if (this.#state !== 'open') throw this.#shut()
  }

  #shut(): VerbsError {
    return new VerbsError('ESHUTDOWN', 'send', this.#link.id.description, 'the connection is closed')
  }

  #reset(detail: string): VerbsError {
    return new VerbsError('ECONNRESET', 'connection', this.#link.id.description, detail)
  }
}
