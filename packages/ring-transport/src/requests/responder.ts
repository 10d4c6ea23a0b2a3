import { types } from 'node:util'
import { VerbsError } from '@rdmakit/verbs'
import type { CallbackScope } from '@rdmakit/verbs/internal'
import { Chain, ChainLink } from '../base/chain.js'
import { TYPE } from '../native.js'
import type { RingMessage } from '../receiving/message.js'
import { Allowance, requestCost, type Turn } from './allowance.js'
import { encodeError } from './remote-error.js'

/** What a handler is told beside the request: see RequestContext. */
export interface HandlerContext<Connection> {
  readonly connection: Connection
  readonly signal: AbortSignal
}

/** Answers requests: see RequestHandler. */
export type Handler<Connection> = (
  request: RingMessage,
  context: HandlerContext<Connection>,
) => Uint8Array | Promise<Uint8Array>

/** Sends a frame when there is room. `onSent`: it is on its way. */
export type Wait = (type: number, correlation: number, bytes: Uint8Array, onSent: () => void) => Promise<void>

/** The connection, as answering uses it. */
export interface ResponderHost<Connection> {
  readonly connection: Connection
  /** where handlers run */
  readonly scope: CallbackScope
  /** Sends a frame now. False when it has to {@link wait}; true, too, when there is nobody any more to send it to. */
  readonly send: (type: number, correlation: number, bytes: Uint8Array) => boolean
  readonly wait: Wait
  /** @throws TypeError, VerbsError EMSGSIZE: it could never be sent */
  readonly requireFits: (bytes: Uint8Array) => void
  /** bytes of responses that may wait for the peer to take them: beyond half of it no more handlers begin */
  readonly maxResponseMemory: number
  /** called when the peer asks on and on and takes no answers */
  overflow(): void
}

const ENTRY_BYTES = 512

/**
 * Runs the handler on the peer's requests and sends its results. A request gives its part of the ring back
 * before the handler has answered, so that none blocks later frames; its memory is counted until the answer.
 */
export class Responder<Connection> {
  readonly #host: ResponderHost<Connection>
  readonly #allowance: Allowance
  readonly #running = new Chain<Running<Connection>>()
  #handler: Handler<Connection> | undefined
  /** whether there will be a handler, perhaps */
  #expected = false
  /** requests that have left the ring and whose handler is yet to begin, in order */
  readonly #early = new Set<Running<Connection>>()
  #views = false
  /** bytes of responses that wait for room at the peer, each with what remembering it takes */
  #waiting = 0
  #idle: (() => void) | undefined
  #ended = false

  /** @param allowance bytes that requests may take; a peer that keeps to the rules (allowance.ts) never wants more */
  constructor(host: ResponderHost<Connection>, allowance: number) {
    this.#host = host
    this.#allowance = new Allowance(allowance)
  }

  /** @param views the handler reads requests in the ring, until it returns, instead of copies */
  handle(handler: Handler<Connection> | undefined, views: boolean): void {
    this.#handler = handler
    this.#views = views
    this.#goOn()
  }

  /** Requests wait until there is a handler, or `owner` has settled: then there will be none. */
  expect(owner: PromiseLike<unknown>): void {
    this.#expected = true
    const settled = () => {
      this.#expected = false
      this.#goOn()
    }
    owner.then(settled, settled)
  }

  /** requests whose response is not on its way yet */
  get running(): number {
    return this.#running.size
  }

  /** bytes that they count for */
  get memory(): number {
    return this.#allowance.used
  }

  /** bytes of responses that wait for room at the peer, each with what remembering it takes */
  get waiting(): number {
    return this.#waiting
  }

  /** One that the allowance has no room for waits in the ring. */
  answer(request: RingMessage): void {
    // One in parts that waited for memory comes when that waits no more: there is no one to answer.
    if (this.#ended) {
      request.release()
      return
    }
    const running = new Running(this.#host.connection, request, this.#begin)
    // One that came in parts waits in memory, of which a peer that keeps to the rules has taken no more than this.
    if (request.isOwn && !this.#allowance.fits(running.cost)) {
      this.#host.overflow()
      return
    }
    this.#running.add(running)
    this.#allowance.enter(running)
  }

  /** Resolves when no handler runs and every response is on its way. */
  async idle(): Promise<void> {
    while (this.#running.size > 0)
      await new Promise<void>((resolve) => {
        this.#idle = resolve
      })
  }

  /** The connection has ended. */
  end(reason: unknown): void {
    this.#ended = true
    const waited: Running<Connection>[] = []
    for (const running of this.#running.all()) {
      running.end(reason)
      if (running.waiting === undefined) continue
      // Its turn will not come any more, and the ring is not free until this is released.
      running.waiting.release()
      running.waiting = undefined
      waited.push(running)
    }
    // All of them first: the turn of one that leaves could be that of another.
    for (const running of waited) this.#finish(running)
    this.#early.clear()
  }

  /** Begins those that have waited, as far as they may. */
  #goOn(): void {
    for (const running of this.#early) {
      if (!this.#ready) return
      this.#early.delete(running)
      // Runs in the connection's scope, not in that of the code that has ended or set the handler.
      this.#host.scope.run(() => this.#run(running))
    }
  }

  /** Whether handlers may begin: they are known, and the peer takes their answers. More would make more of them. */
  get #ready(): boolean {
    const expected = this.#handler === undefined && this.#expected
    return !expected && this.#waiting <= this.#host.maxResponseMemory / 2
  }

  /** The allowance has room for it. */
  readonly #begin = (running: Running<Connection>): void => {
    if (running.waiting === undefined) return // the connection has ended
    if (this.#ready && this.#early.size === 0) this.#run(running)
    else {
      running.waiting.move()
      this.#early.add(running)
    }
  }

  #run(running: Running<Connection>): void {
    const request = running.waiting
    running.waiting = undefined
    if (request === undefined) return // the connection has ended
    if (this.#handler === undefined) {
      request.release()
      this.#fail(running, new VerbsError('ENOSYS', 'request', 'the peer', 'it has no handler'))
      return
    }
    if (!this.#views) request.move()
    try {
      const result = this.#handler(request, running)
      if (types.isUint8Array(result)) this.#respond(running, TYPE.response, result)
      else this.#respondLater(running, result)
    } catch (failure) {
      this.#fail(running, failure)
    } finally {
      // Not before: the response may be a view of it.
      request.release()
    }
  }

  #respondLater(running: Running<Connection>, result: Promise<Uint8Array>): void {
    const respond = (bytes: Uint8Array) => this.#respond(running, TYPE.response, bytes)
    const fail = (failure: unknown) => this.#fail(running, failure)
    Promise.resolve(result).then(respond, fail).catch(fail)
  }

  #fail(running: Running<Connection>, failure: unknown): void {
    this.#respond(running, TYPE.error, encodeError(failure))
  }

  #respond(running: Running<Connection>, type: number, bytes: Uint8Array): void {
    const { send, requireFits } = this.#host
    try {
      if (send(type, running.correlation, bytes)) {
        this.#finish(running)
        return
      }
      requireFits(bytes)
    } catch (failure) {
      // A response that cannot be sent, too long or not even bytes, is the handler's fault: the requester gets an error.
      // If the connection has ended, that fails too, and there is no one to tell.
      if (type === TYPE.error) this.#finish(running)
      else this.#fail(running, failure)
      return
    }
    this.#respondWithRoom(running, type, bytes)
  }

  #respondWithRoom(running: Running<Connection>, type: number, bytes: Uint8Array): void {
    const { send, wait, maxResponseMemory } = this.#host
    const { correlation } = running
    let left = false
    // The peer counts on the memory as soon as it has the answer.
    const sent = () => {
      left = true
      this.#finish(running)
    }
    const posted = wait(type, correlation, bytes, sent)
    // One that is longer than a frame has perhaps found room for all its parts.
    if (left) return
    // Answered requests that wait for room are not held back: that could stop two ends that send requests to each
    // other, for ever.
    const waiting = bytes.length + ENTRY_BYTES
    this.#waiting += waiting
    if (this.#waiting > maxResponseMemory) this.#host.overflow()
    posted
      .catch(async (reason) => {
        const error = encodeError(reason)
        if (send(TYPE.error, correlation, error)) sent()
        else await wait(TYPE.error, correlation, error, sent)
      })
      .catch(() => {})
      .finally(() => {
        this.#waiting -= waiting
        this.#finish(running)
        // Many at a time.
        if (this.#waiting <= maxResponseMemory / 4) this.#goOn()
      })
  }

  #finish(running: Running<Connection>): void {
    if (!this.#running.delete(running)) return
    // Those that begin now have nothing to do with the one that has ended, either.
    if (this.#allowance.waiting > 0) this.#host.scope.run(() => this.#allowance.leave(running))
    else this.#allowance.leave(running)
    if (this.#running.size > 0) return
    this.#idle?.()
    this.#idle = undefined
  }
}

/** A request that is being answered, as its handler sees it. */
class Running<Connection> extends ChainLink<Running<Connection>> implements HandlerContext<Connection>, Turn {
  readonly connection: Connection
  readonly correlation: number
  readonly cost: number
  turn: Turn['turn']
  /** in the ring, until its turn comes */
  waiting: RingMessage | undefined
  readonly #begin: (running: Running<Connection>) => void
  #abort: AbortController | undefined
  #ended = false
  #reason: unknown

  /** @param begin called when the allowance has room for it */
  constructor(connection: Connection, request: RingMessage, begin: (running: Running<Connection>) => void) {
    super()
    this.connection = connection
    this.correlation = request.correlation
    this.cost = requestCost(request.length)
    this.waiting = request
    this.#begin = begin
  }

  begin(): void {
    this.#begin(this)
  }

  /** Created on first use: most handlers do not need it. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    if (this.#ended) this.#abort.abort(this.#reason)
    return this.#abort.signal
  }

  end(reason: unknown): void {
    this.#ended = true
    this.#reason = reason
    this.#abort?.abort(reason)
  }
}
