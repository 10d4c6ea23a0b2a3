import { types } from 'node:util'
import { VerbsError } from '@rdmakit/verbs'
import type { CallbackScope } from '@rdmakit/verbs/internal'
import { Chain, ChainLink } from '../base/chain.js'
import { TYPE } from '../native.js'
import type { RingMessage } from '../receiving/message.js'
import { Allowance, requestCost, Turn } from './allowance.js'
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

/** Sends a frame; a promise when that has to wait. `onSent`: it is on its way. */
export type Post = (
  type: number,
  correlation: number,
  bytes: Uint8Array,
  onSent: () => void,
) => Promise<void> | undefined

/** The connection, as answering uses it. */
export interface ResponderHost<Connection> {
  readonly connection: Connection
  /** where handlers run */
  readonly scope: CallbackScope
  readonly post: Post
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
  readonly #connection: Connection
  readonly #scope: CallbackScope
  readonly #post: Post
  readonly #overflow: () => void
  readonly #maxResponseMemory: number
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

  /** @param allowance bytes that requests may take; a peer that keeps to the rules (allowance.ts) never wants more */
  constructor(host: ResponderHost<Connection>, allowance: number) {
    this.#connection = host.connection
    this.#scope = host.scope
    this.#allowance = new Allowance(allowance)
    this.#post = host.post
    this.#overflow = host.overflow
    this.#maxResponseMemory = host.maxResponseMemory
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

  /** One that the allowance has no room for waits in the ring. */
  answer(request: RingMessage): void {
    const running = new Running(this.#connection, request, this.#begin)
    // One that came in parts waits in memory, of which a peer that keeps to the rules has taken no more than this.
    if (request.isLasting && !this.#allowance.fits(running.turn.cost)) {
      this.#overflow()
      return
    }
    this.#running.add(running)
    this.#allowance.enter(running.turn)
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
      this.#scope.run(() => this.#run(running))
    }
  }

  /** Whether handlers may begin: they are known, and the peer takes their answers. More would make more of them. */
  get #ready(): boolean {
    return !(this.#handler === undefined && this.#expected) && this.#waiting <= this.#maxResponseMemory / 2
  }

  /** The allowance has room for it. */
  readonly #begin = (running: Running<Connection>): void => {
    if (running.waiting === undefined) return // the connection has ended
    if (this.#ready && this.#early.size === 0) this.#run(running)
    else {
      running.waiting = running.waiting.moved()
      this.#early.add(running)
    }
  }

  #run(running: Running<Connection>): void {
    const request = running.waiting
    running.waiting = undefined
    if (request === undefined) return // the connection has ended
    const respond = (bytes: Uint8Array) => this.#respond(running, TYPE.response, bytes)
    const fail = (failure: unknown) => this.#respond(running, TYPE.error, encodeError(failure))
    if (this.#handler === undefined) {
      request.release()
      fail(new VerbsError('ENOSYS', 'request', 'the peer', 'it has no handler'))
      return
    }
    const given = this.#views ? request : request.moved()
    try {
      const result = this.#handler(given, running)
      given.release()
      if (types.isUint8Array(result)) respond(result)
      else Promise.resolve(result).then(respond, fail).catch(fail)
    } catch (failure) {
      given.release()
      fail(failure)
    }
  }

  #respond(running: Running<Connection>, type: number, bytes: Uint8Array): void {
    const { correlation } = running
    // The peer counts on the memory as soon as it has the answer.
    const sent = () => this.#finish(running)
    const posted = this.#post(type, correlation, bytes, sent)
    if (posted === undefined) {
      this.#finish(running)
      return
    }
    // Answered requests that wait for room are not held back: that could stop two ends that send requests to each
    // other, for ever.
    const waiting = (bytes?.length ?? 0) + ENTRY_BYTES // a handler may return what is no bytes at all
    this.#waiting += waiting
    if (this.#waiting > this.#maxResponseMemory) this.#overflow()
    // A response that cannot be sent, too long or not even bytes, is the handler's fault: the requester gets an
    // error. If the connection has ended, that fails too, and there is no one to tell.
    posted
      .catch((failure) => this.#post(TYPE.error, correlation, encodeError(failure), sent))
      .catch(() => {})
      .finally(() => {
        this.#waiting -= waiting
        this.#finish(running)
        // Many at a time.
        if (this.#waiting <= this.#maxResponseMemory / 4) this.#goOn()
      })
  }

  #finish(running: Running<Connection>): void {
    if (!this.#running.delete(running)) return
    const { turn } = running
    // Those that begin now have nothing to do with the one that has ended, either.
    if (this.#allowance.waiting > 0) this.#scope.run(() => this.#allowance.leave(turn))
    else this.#allowance.leave(turn)
    if (this.#running.size > 0) return
    this.#idle?.()
    this.#idle = undefined
  }
}

/** A request that is being answered, as its handler sees it. */
class Running<Connection> extends ChainLink<Running<Connection>> implements HandlerContext<Connection> {
  readonly connection: Connection
  readonly correlation: number
  /** in the ring, until its turn comes */
  waiting: RingMessage | undefined
  readonly turn: Turn
  #abort: AbortController | undefined
  #ended = false
  #reason: unknown

  /** @param begin called when the allowance has room for it */
  constructor(connection: Connection, request: RingMessage, begin: (running: Running<Connection>) => void) {
    super()
    this.turn = new RunningTurn(requestCost(request.length), this, begin)
    this.connection = connection
    this.correlation = request.correlation
    this.waiting = request
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

class RunningTurn<Connection> extends Turn {
  readonly #running: Running<Connection>
  readonly #begin: (running: Running<Connection>) => void

  constructor(cost: number, running: Running<Connection>, begin: (running: Running<Connection>) => void) {
    super(cost)
    this.#running = running
    this.#begin = begin
  }

  begin(): void {
    this.#begin(this.#running)
  }
}
