import { VerbsError } from '@rdmakit/verbs'
import { deferred, within } from '@rdmakit/verbs/internal'
import { type Observable, ReplaySubject } from 'rxjs'
import { setImmediate } from '../base/clock.js'
import { DEFAULT_TIMEOUT_MS, milliseconds } from '../base/timeout.js'
import { SEND, TYPE } from '../native.js'
import { Inbox } from '../receiving/inbox.js'
import type { RingMessage } from '../receiving/message.js'
import { requestAllowance } from '../requests/allowance.js'
import { PendingRequest, PendingRequests } from '../requests/pending-requests.js'
import { decodeError } from '../requests/remote-error.js'
import { Responder } from '../requests/responder.js'
import { Outbox } from '../sending/outbox.js'
import type { Link, LinkSink } from '../setup/link.js'
import { Transfers } from '../transfer/transfers.js'
import type { RingConnection } from './connection.js'
import { Liveness } from './liveness.js'
import type { ConnectionState } from './states.js'

/** Why a connection ended: `undefined` when one of the ends closed it in good order. */
export type CloseReason = VerbsError | undefined

export interface CloseOptions {
  /**
   * Let what is under way finish (default): requests, handlers, messages on their way, and the peer's
   * too. False breaks the connection at once.
   */
  readonly drain?: boolean | undefined
  /** how long draining may take, milliseconds, default 5000; then the connection is broken */
  readonly timeout?: number | undefined
}

const EMPTY = new Uint8Array()

/**
 * What goes on behind a {@link RingConnection}: it hands what arrives to the part that it is for, and
 * ends the connection, in good order or not, once.
 */
export class Exchange {
  readonly link: Link
  readonly inbox: Inbox
  readonly requests: PendingRequests
  readonly outbox: Outbox
  readonly responder: Responder
  readonly transfers: Transfers
  /** @see RingConnection.closed */
  readonly closed: Promise<CloseReason>
  /** @see RingConnection.states */
  readonly states: Observable<ConnectionState>
  readonly #closed = deferred<CloseReason>()
  readonly #peerClosed = deferred<void>()
  readonly #states = new ReplaySubject<ConnectionState>(1)
  readonly #liveness: Liveness
  /** Passes on what has arrived and all that does, in order. By itself a turn after the connection was made. */
  readonly begin: () => void
  #begun = false
  #state: 'open' | 'closing' | 'ended' = 'open'
  /** the peer's CLOSE has come */
  #peerHasClosed = false
  /** this end's CLOSE is behind all that was accepted */
  #hasClosed = false
  #ending: Promise<void> | undefined
  #failure: VerbsError | undefined

  constructor(link: Link, connection: RingConnection) {
    this.link = link
    this.inbox = new Inbox()
    const allowance = requestAllowance(2 ** link.peer.log2Capacity)
    this.requests = new PendingRequests(link.id.description, allowance, (request, bytes) =>
      this.#ask(request, bytes),
    )
    const failed = () => {
      const reason = this.#reset('the queue pair takes no more')
      this.#lost(reason)
      return reason
    }
    this.outbox = new Outbox(link, failed)
    this.responder = new Responder(
      connection,
      link.scope,
      requestAllowance(link.capacity),
      (type, correlation, bytes, onSent) => this.outbox.post({ type, correlation }, bytes, undefined, onSent),
      () => this.#lost(this.#flooded()),
    )
    this.transfers = new Transfers(
      {
        object: link.id.description,
        protectionDomain: link.protectionDomain,
        debug: link.debug,
        post: (...frame) => this.outbox.post(...frame),
        lend: (...frame) => this.outbox.lend(...frame),
        send: ({ type, correlation = 0, immediate = 0 }, bytes) =>
          this.outbox.send(type, correlation, immediate, bytes),
        read: (...read) => link.read(...read),
        hold: () => this.inbox.hold(),
        // Its memory may have come free in a context of somebody else's.
        deliver: (type, message) => link.scope.run(() => this.#dispatch(type, message)),
        fail: (reason) => this.#lost(reason),
        keep: () => link.keep(),
      },
      link.transfers,
    )
    this.closed = this.#closed.promise
    this.states = link.scope.observe(this.#states)
    this.#states.next({ state: 'open', epoch: this.#epoch })
    const sink: LinkSink = {
      message: (type, message) => this.#receive(type, message),
      writable: (room) => this.outbox.onWritable(room),
      read: (tag, status) => this.transfers.onRead(tag, status),
      broken: (reason) => this.#lost(reason),
    }
    this.#liveness = new Liveness(link.liveness, {
      heard: () => link.heard(),
      activity: () => link.activity(),
      busy: () =>
        this.requests.count + this.responder.running + this.inbox.waiting + this.transfers.count > 0,
      ping: () => link.ping() === SEND.failed && failed(),
      dead: (silence) => this.#lost(this.#silent(silence)),
      idle: (isIdle) => link.scope.run(() => this.#rest(isIdle)),
    })
    this.#liveness.start()
    this.begin = () => {
      if (this.#begun) return
      this.#begun = true
      link.scope.run(() => link.start(sink))
    }
    // The owner first gets a turn to subscribe and to set a handler.
    setImmediate(this.begin)
    void link.id.disconnected.then((reason) => this.#lost(this.#vanished(reason)))
  }

  /** @see RingConnection.close */
  async close({ drain = true, timeout = DEFAULT_TIMEOUT_MS }: CloseOptions = {}): Promise<void> {
    const limit = milliseconds('timeout', timeout)
    // What was accepted from the peer counts as delivered there.
    const discard = () => (drain ? this.inbox.discardUntaken() : this.inbox.discard())
    discard()
    const late = () => this.#undrained()
    if (!drain) await this.#end(undefined)
    else if (this.#state === 'open')
      await this.link.scope.run(() => this.#shutdown(limit, this.#peerClosed.promise))
    // Somebody else has begun already, and may have more patience.
    else await within(this.closed, limit, late).catch((failure: VerbsError) => this.#end(failure))
    await this.closed
    discard()
  }

  /**
   * Breaks the connection because a later one of its session has come. When this resolves, nothing
   * of it is delivered any more, not even what had arrived.
   */
  async abandon(epoch: number): Promise<void> {
    const detail = `epoch ${epoch} of its session has come`
    this.inbox.discard()
    this.#lost(new VerbsError('ESTALE', 'connection', this.link.id.description, detail))
    await this.closed
    this.inbox.discard()
  }

  get isOpen(): boolean {
    return this.#state === 'open'
  }

  /** @throws VerbsError ESHUTDOWN when it is not open any more */
  requireOpen(): void {
    if (this.#state !== 'open') throw this.shut()
  }

  /** Why nothing can be sent any more. */
  shut(): VerbsError {
    return new VerbsError('ESHUTDOWN', 'send', this.link.id.description, 'the connection is closed')
  }

  // — asking —

  #ask(request: PendingRequest, bytes: Uint8Array): void {
    const { outbox, requests } = this
    if (outbox.hasEnded) return
    const { correlation, immediate } = request
    try {
      if (outbox.isFrame(bytes) && outbox.send(TYPE.request, correlation, immediate, bytes)) {
        request.sent = true
        return
      }
    } catch (failure) {
      requests.giveUp(request, failure)
      return
    }
    const wanted = () => requests.has(request)
    const sent = () => {
      request.sent = true
    }
    outbox
      .wait({ type: TYPE.request, correlation, immediate }, bytes, wanted, sent)
      .catch((failure) => requests.giveUp(request, failure))
  }

  // — receiving —

  #receive(type: number, message: RingMessage): void {
    const kind = type === TYPE.part ? message.immediate : type
    if (this.#peerHasClosed && (kind === TYPE.data || kind === TYPE.request || kind === TYPE.offer))
      this.#refuse(message, 'the peer sent after its close')
    else if (!this.transfers.mayCome(type))
      this.#refuse(message, 'the peer sent something within a message in parts')
    else this.#dispatch(type, message)
  }

  #refuse(message: RingMessage, what: string): void {
    message.release()
    void this.#end(new VerbsError('EPROTO', 'receive', this.link.id.description, what))
  }

  #dispatch(type: number, message: RingMessage): void {
    switch (type) {
      case TYPE.data:
        this.inbox.arrive(message)
        return
      case TYPE.request:
        this.responder.answer(message)
        return
      case TYPE.response:
      case TYPE.error: {
        const request = this.requests.take(message.correlation)
        if (request instanceof PendingRequest) {
          if (type === TYPE.response) request.resolve(message.owned())
          else request.reject(decodeError(message))
        }
        if (request === undefined) this.#refuse(message, 'the peer answered what nobody asked')
        else message.release()
        return
      }
      case TYPE.offer:
      case TYPE.settled:
      case TYPE.part:
      case TYPE.last:
        this.transfers.receive(type, message)
        return
      case TYPE.close:
        message.release()
        this.#peerHasClosed = true
        this.#peerClosed.resolve()
        if (this.#state === 'open') void this.#shutdown(DEFAULT_TIMEOUT_MS, this.link.id.disconnected)
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
    // Nothing can be sent of it any more, and what waits behind it must be.
    if (this.outbox.claimed >= 0) this.outbox.abort()
    this.#states.next({ state: 'draining', epoch: this.#epoch })
    const drain = async () => {
      await this.requests.idle()
      await this.responder.idle()
      await this.transfers.idle()
      await this.outbox.postLast(TYPE.close, EMPTY)
      this.#hasClosed = true
      await this.outbox.drained()
      await other
    }
    try {
      // What it waits for may never come once somebody has broken the connection meanwhile.
      const drained = Promise.race([drain(), this.closed])
      await within(drained, timeout, () => this.#undrained())
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
    this.#ending ??= this.link.scope.run(() => this.#finish(reason))
    return this.#ending
  }

  async #finish(reason: CloseReason): Promise<void> {
    this.#state = 'ended'
    this.#liveness.stop()
    const lost = this.#failure !== undefined
    try {
      this.link.id.disconnect()
    } catch {
      // It is disconnected already, which is what was wanted.
    }
    await this.link.destroy()
    // All that had arrived has been received by now: the peer's CLOSE perhaps, after which a lost
    // connection is the end in good order, or what it did wrong.
    const latest = lost ? this.#failure : reason
    const final =
      lost && this.#peerHasClosed && this.#hasClosed && latest?.code === 'ECONNRESET' ? undefined : latest
    const failure = final ?? new VerbsError('ECANCELED', 'request', this.link.id.description, 'it was closed')
    const epoch = this.#epoch
    this.#states.next(
      final === undefined ? { state: 'closed', epoch } : { state: 'lost', epoch, reason: final },
    )
    this.#states.complete()
    this.requests.rejectAll(failure)
    this.outbox.end(failure)
    this.responder.end(failure)
    this.#peerClosed.resolve()
    // What has arrived behind a large message that will not is still delivered.
    await this.transfers.end(failure)
    this.inbox.end()
    this.#closed.resolve(final)
  }

  /** What draining waited for says whose fault it is: a handler that awaits close() waits for itself. */
  #undrained(): VerbsError {
    const left = [
      several(this.requests.count, 'request(s) that the peer has not answered'),
      several(
        this.responder.running,
        'request(s) that a handler has not answered (one that awaits close() cannot)',
      ),
      several(this.transfers.count, 'large message(s) under way'),
    ].filter((one) => one !== undefined)
    return this.#reset(`draining takes too long: ${left.join(', ') || 'the peer does not close'}`)
  }

  #flooded(): VerbsError {
    const detail = 'the peer asks without end and takes no answers'
    return new VerbsError('ENOBUFS', 'request', this.link.id.description, detail)
  }

  #silent(milliseconds: number): VerbsError {
    const detail = `nothing was heard of the peer for ${Math.round(milliseconds)} ms`
    return new VerbsError('ETIMEDOUT', 'heartbeat', this.link.id.description, detail)
  }

  /** The connection has become idle, or is so no longer. */
  #rest(isIdle: boolean): void {
    if (this.#state !== 'open') return
    this.#states.next({ state: isIdle ? 'idle' : 'open', epoch: this.#epoch })
    if (isIdle && this.link.liveness.closeWhenIdle) void this.close()
  }

  get #epoch(): number {
    return this.link.peer.session?.epoch ?? 0
  }

  /** What a device calls ECONNABORTED, a queue pair that failed at the peer, is a peer that broke the connection. */
  #vanished(reason: VerbsError | undefined): VerbsError {
    if (reason === undefined) return this.#reset('the peer vanished')
    return reason.code === 'ECONNABORTED' ? this.#reset('the queue pair of the peer failed') : reason
  }

  #reset(detail: string): VerbsError {
    return new VerbsError('ECONNRESET', 'connection', this.link.id.description, detail)
  }
}

function several(count: number, what: string): string | undefined {
  return count === 0 ? undefined : `${count} ${what}`
}
