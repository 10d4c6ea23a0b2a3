import { VerbsError } from '@rdmakit/verbs'
import type { Observable, ObservableInput } from 'rxjs'
import type { RingLink } from '../link/ring-link.js'
import { TYPE } from '../native.js'
import { type Form, Inbox } from '../receiving/inbox.js'
import type { RingMessage } from '../receiving/message.js'
import { Requests, several } from '../requests/requests.js'
import { Outbox } from '../sending/outbox.js'
import { Transfers } from '../transfer/transfers.js'
import { Lifecycle } from './lifecycle.js'

const EMPTY = new Uint8Array()

/** The work behind a {@link RingConnection}: passes arrivals to the part that handles them. */
export class Exchange<Connection> {
  readonly link: RingLink
  readonly inbox = new Inbox()
  readonly outbox: Outbox
  readonly requests: Requests<Connection>
  readonly transfers: Transfers
  readonly lifecycle: Lifecycle
  /** Passes on present and future arrivals, in order. Called automatically a turn after the connection was made. */
  readonly begin: () => void

  constructor(link: RingLink, connection: Connection) {
    this.link = link
    this.outbox = new Outbox(link, () => this.lifecycle.failed())
    this.requests = new Requests({
      connection,
      object: link.id.description,
      scope: link.scope,
      outbox: this.outbox,
      capacity: link.capacity,
      peerCapacity: 2 ** link.peer.windows.log2Capacity,
      maxResponseMemory: link.maxResponseMemory,
      overflow: () => this.lifecycle.lost(this.#flooded()),
    })
    this.transfers = this.#makeTransfers()
    this.lifecycle = this.#makeLifecycle()
    this.begin = link.startSoon({
      message: (type, message) => this.#receive(type, message),
      writable: (room) => this.outbox.onWritable(room),
      read: (tag, status) => this.transfers.onRead(tag, status),
      broken: (reason) => this.lifecycle.lost(reason),
    })
  }

  get isOpen(): boolean {
    return this.lifecycle.isOpen
  }

  /** @throws VerbsError ESHUTDOWN when it is not open any more */
  requireOpen(): void {
    if (!this.isOpen) throw this.shut()
  }

  /** Why nothing can be sent any more. */
  shut(): VerbsError {
    return new VerbsError('ESHUTDOWN', 'send', this.link.id.description, 'the connection is closed')
  }

  /** @see RingConnection.memory */
  get memory(): number {
    const { link, requests } = this
    const { memory, waiting } = requests.responder
    return link.windows.bytes + link.peer.windows.bytes + memory + waiting
  }

  /** @see RingConnection.consume */
  consume<T>(
    form: Form,
    project: (message: RingMessage) => ObservableInput<T>,
    concurrency: number,
  ): Observable<T> {
    const { inbox, link } = this
    return link.scope.observe(inbox.consume(form, link.scope.wrap(project), concurrency))
  }

  /** @see RingConnection.statistics */
  statistics() {
    const { inbox, outbox, requests, transfers } = this
    return {
      ...this.link.counters.all(),
      framesSent: outbox.frames,
      bytesSent: outbox.bytes,
      requestsInFlight: requests.pending.count,
      requestsRunning: requests.responder.running,
      requestMemory: requests.responder.memory,
      messagesWaiting: inbox.waiting,
      transfersInFlight: transfers.count,
      transferMemory: transfers.memory,
    }
  }

  #makeTransfers(): Transfers {
    const { inbox, link, outbox } = this
    return new Transfers(
      {
        object: link.id.description,
        protectionDomain: link.protectionDomain,
        debug: link.debug,
        post: (...frame) => outbox.post(...frame),
        borrow: (...frame) => outbox.borrow(...frame),
        send: ({ type, correlation = 0, immediate = 0 }, bytes) =>
          outbox.send(type, correlation, immediate, bytes),
        read: (...read) => link.read(...read),
        hold: () => inbox.hold(),
        // Its memory may have become free in another context.
        deliver: (type, message) => link.scope.run(() => this.#dispatch(type, message)),
        fail: (reason) => this.lifecycle.lost(reason),
        keep: () => link.keep(),
      },
      link.transfers,
    )
  }

  #makeLifecycle(): Lifecycle {
    const { inbox, link, outbox, requests, transfers } = this
    return new Lifecycle(link, {
      isBusy: () => requests.count + inbox.waiting + transfers.count > 0,
      // The claimed bytes cannot be sent any more, and the messages behind them must be.
      stop: () => outbox.claimed >= 0 && outbox.abort(),
      finish: async () => {
        await requests.idle()
        await transfers.idle()
        await outbox.postLast(TYPE.close, EMPTY)
      },
      drained: () => outbox.drained(),
      underWay: () =>
        [...requests.underWay, several(transfers.count, 'large message(s) under way')]
          .filter((one) => one !== undefined)
          .join(', '),
      discard: (what) => (what === 'all' ? inbox.discard() : inbox.discardUntaken()),
      end: async (failure) => {
        requests.pending.rejectAll(failure)
        outbox.end(failure)
        requests.responder.end(failure)
        // Arrivals behind a large message that will not come are still delivered.
        await transfers.end(failure)
        inbox.end()
      },
    })
  }

  #receive(type: number, message: RingMessage): void {
    const kind = type === TYPE.part ? message.immediate : type
    if (this.lifecycle.peerHasClosed && (kind === TYPE.data || kind === TYPE.request || kind === TYPE.offer))
      this.#refuse(message, 'the peer sent after its close')
    else if (!this.transfers.mayCome(type))
      this.#refuse(message, 'the peer sent something within a message in parts')
    else this.#dispatch(type, message)
  }

  #refuse(message: RingMessage, what: string): void {
    message.release()
    this.#violated(what)
  }

  #violated(what: string): void {
    void this.lifecycle.end(new VerbsError('EPROTO', 'receive', this.link.id.description, what))
  }

  #dispatch(type: number, message: RingMessage): void {
    switch (type) {
      case TYPE.data:
        this.inbox.arrive(message)
        return
      case TYPE.request:
      case TYPE.response:
      case TYPE.error: {
        const wrong = this.requests.receive(type, message)
        if (wrong !== undefined) this.#violated(wrong)
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
        this.lifecycle.closedByPeer()
    }
  }

  #flooded(): VerbsError {
    const detail = 'the peer keeps sending requests and does not receive the answers'
    return new VerbsError('ENOBUFS', 'request', this.link.id.description, detail)
  }
}
