import { onAbort } from '@rdmakit/verbs/internal'
import type { RequestOptions } from '../connection/call-options.js'
import { TYPE } from '../native.js'
import type { RingMessage } from '../receiving/message.js'
import type { Outbox } from '../sending/outbox.js'
import { requestAllowance } from './allowance.js'
import { PendingRequest, PendingRequests } from './pending-requests.js'
import { decodeError } from './remote-error.js'
import { type Handler, Responder, type ResponderHost } from './responder.js'

/** The connection, as requests use it. */
export interface RequestsHost<Connection>
  extends Omit<ResponderHost<Connection>, 'send' | 'wait' | 'requireFits'> {
  /** what errors call the connection */
  readonly object: string
  readonly outbox: Outbox
  /** bytes of the ring of this end, and of the peer's */
  readonly capacity: number
  readonly peerCapacity: number
}

/** The requests and responses of a connection, both ways. */
export class Requests<Connection> {
  readonly pending: PendingRequests
  readonly responder: Responder<Connection>
  readonly #outbox: Outbox

  constructor(host: RequestsHost<Connection>) {
    const { outbox } = host
    this.#outbox = outbox
    this.pending = new PendingRequests(host.object, requestAllowance(host.peerCapacity), (request, bytes) =>
      this.#ask(request, bytes),
    )
    this.responder = new Responder(
      {
        connection: host.connection,
        scope: host.scope,
        send: (type, correlation, bytes) => outbox.hasEnded || outbox.sendWhole(type, correlation, 0, bytes),
        wait: (type, correlation, bytes, onSent) =>
          outbox.wait({ type, correlation }, bytes, () => true, onSent),
        requireFits: (bytes) => outbox.requireFits(bytes),
        maxResponseMemory: host.maxResponseMemory,
        overflow: host.overflow,
      },
      requestAllowance(host.capacity),
    )
  }

  /** @see RingConnection.request @param connection throws when it is not open */
  request(
    bytes: Uint8Array,
    { signal, timeout, immediate }: RequestOptions,
    connection: { requireOpen(): void },
  ): Promise<Uint8Array> {
    const { pending } = this
    let request: PendingRequest
    try {
      signal?.throwIfAborted()
      connection.requireOpen()
      this.#outbox.requireFits(bytes)
      request = pending.ask(bytes, timeout, immediate)
    } catch (failure) {
      return Promise.reject(failure)
    }
    if (signal !== undefined && pending.has(request))
      request.settled = onAbort(signal, () => pending.giveUp(request, signal.reason))
    return request.response
  }

  /** requests, both ways, that are under way */
  get count(): number {
    return this.pending.count + this.responder.running
  }

  /**
   * Answers the peer's requests.
   * @param views the handler reads requests in the ring, until it returns, instead of copies
   */
  handle(handler: Handler<Connection> | undefined, views: boolean): void {
    this.responder.handle(handler, views)
  }

  /**
   * A frame of type request, response or error.
   * @returns what the peer did wrong, if anything
   */
  receive(type: number, message: RingMessage): string | undefined {
    if (type === TYPE.request) {
      this.responder.answer(message)
      return undefined
    }
    const request = this.pending.take(message.correlation)
    if (request instanceof PendingRequest) {
      if (type === TYPE.response) request.resolve(message.owned())
      else request.reject(decodeError(message))
    }
    message.release()
    return request === undefined ? 'the peer answered a request that this end has not sent' : undefined
  }

  /** Resolves when all are answered, and every response is on its way. */
  async idle(): Promise<void> {
    await this.pending.idle()
    await this.responder.idle()
  }

  /** The awaited work, in words; undefined if there is none. */
  get underWay(): (string | undefined)[] {
    return [
      several(this.pending.count, 'request(s) that the peer has not answered'),
      several(
        this.responder.running,
        'request(s) that a handler has not answered (one that awaits close() cannot)',
      ),
    ]
  }

  #ask(request: PendingRequest, bytes: Uint8Array): void {
    const { pending } = this
    const outbox = this.#outbox
    if (outbox.hasEnded) return
    const { correlation, immediate } = request
    try {
      if (outbox.sendWhole(TYPE.request, correlation, immediate, bytes)) {
        request.sent = true
        return
      }
    } catch (failure) {
      pending.giveUp(request, failure)
      return
    }
    const wanted = () => pending.has(request)
    const sent = () => {
      request.sent = true
    }
    outbox
      .wait({ type: TYPE.request, correlation, immediate }, bytes, wanted, sent)
      .catch((failure) => pending.giveUp(request, failure))
  }
}

/** @internal so many of something, in words; undefined for none */
export function several(count: number, what: string): string | undefined {
  return count === 0 ? undefined : `${count} ${what}`
}
