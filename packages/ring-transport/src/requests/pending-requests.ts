import type { RecordableHistogram } from 'node:perf_hooks'
import { VerbsError } from '@rdmakit/verbs'
import { type Deferred, deferred } from '@rdmakit/verbs/internal'
import { clearTimeout, performance, queueMicrotask, setImmediate, setTimeout } from '../base/clock.js'
import { copyOf } from '../base/own-memory.js'
import { DEFAULT_TIMEOUT_MS, milliseconds } from '../base/timeout.js'
import { checkImmediate } from '../connection/call-options.js'
import { latencyHistogram } from '../connection/statistics.js'
import { Allowance, requestCost, type Turn } from './allowance.js'
import { RemoteError } from './remote-error.js'

/** A request that waits for its response. */
export class PendingRequest implements Turn {
  readonly correlation: number
  readonly cost: number
  /** @internal */
  turn: Turn['turn']
  readonly response: Promise<Uint8Array>
  readonly immediate: number
  /** milliseconds of performance.now() */
  readonly begun: number
  readonly deadline: number
  /** @internal called when it is settled */
  settled: (() => void) | undefined
  /** @internal it is on its way: a response may come, even if it is no longer awaited */
  sent = false
  readonly #send: SendRequest
  #bytes: Uint8Array | undefined
  resolve!: (response: Uint8Array | Promise<never>) => void

  /** @internal */
  constructor(correlation: number, bytes: Uint8Array, timeout: number, immediate: number, send: SendRequest) {
    this.correlation = correlation
    this.cost = requestCost(bytes.length)
    this.immediate = immediate
    this.begun = performance.now()
    this.deadline = this.begun + timeout
    this.#bytes = bytes
    this.#send = send
    this.response = new Promise((resolve) => {
      this.resolve = resolve
    })
  }

  reject(reason: unknown): void {
    const { promise, reject } = deferred<never>()
    this.resolve(promise.then(undefined, byCaller))
    // In this order: V8 finds who waits from the reaction that runs, so `response` must be among those of its promise.
    queueMicrotask(() => reject(reason))
  }

  /** @internal Bytes that may change once the call has returned. */
  keep(): void {
    if (this.#bytes !== undefined) this.#bytes = copyOf(this.#bytes)
  }

  /** @internal */
  begin(): void {
    const bytes = this.#bytes as Uint8Array
    this.#bytes = undefined
    this.#send(this, bytes)
  }
}

/** The error of a request is created where it arrives; its stack must show the caller, who waits for this. */
function byCaller(failure: unknown): never {
  if (failure instanceof RemoteError || (failure instanceof VerbsError && failure.code === 'ETIMEDOUT'))
    Error.captureStackTrace(failure)
  throw failure
}

/** Sends the request; it is called at most once, and not when it has been given up meanwhile. */
export type SendRequest = (request: PendingRequest, bytes: Uint8Array) => void

/** places at first, a power of two */
const FEW = 64
/** places that are not kept when nothing waits */
const MANY = 4096

/** Requests that wait for their response. One timer serves them all: requests outnumber timeouts by far. */
export class PendingRequests {
  /**
   * Each at its number modulo the places, of which at least half are free: {@link Chain} says why it is no Map. Numbers
   * whose place is taken are not given out.
   */
  #places: (PendingRequest | undefined)[] = new Array(FEW).fill(undefined)
  #count = 0
  /**
   * Requests that timed out or were aborted, and are not answered yet: their numbers are not to be used again, and
   * they take of the peer's memory. That bounds them.
   */
  readonly #abandoned = new Map<number, PendingRequest>()
  readonly #allowance: Allowance
  readonly #object: string
  readonly #send: SendRequest
  #latency: RecordableHistogram | undefined
  /** the number given out last: 1 … 2^32 − 1, then from 1 again */
  last = 0
  #timer: NodeJS.Timeout | undefined
  #wakeAt = Number.POSITIVE_INFINITY
  #empty: Deferred<void> | undefined

  /**
   * @param object what errors call the connection
   * @param allowance bytes of the peer's memory that they may take
   */
  constructor(object: string, allowance: number, send: SendRequest) {
    this.#object = object
    this.#allowance = new Allowance(allowance)
    this.#send = send
  }

  get count(): number {
    return this.#count
  }

  /**
   * A new request, which is sent when the peer has memory for it: until then it waits here, in order.
   * @param bytes are copied when they have to wait, so that they may change once this returns
   * @param timeout milliseconds
   * @throws UsageError for a bad timeout or immediate; TypeError for bytes that are detached and have to wait
   */
  ask(bytes: Uint8Array, timeout = DEFAULT_TIMEOUT_MS, immediate = 0): PendingRequest {
    checkImmediate(immediate)
    const limit = milliseconds('timeout', timeout)
    const request = new PendingRequest(this.#number(), bytes, limit, immediate, this.#send)
    if (!this.#allowance.fits(request.cost)) request.keep()
    this.#places[request.correlation & (this.#places.length - 1)] = request
    this.#count++
    if (request.deadline < this.#wakeAt) this.#arm(request.deadline)
    this.#allowance.enter(request)
    return request
  }

  /**
   * A response has come. @returns the request, which the caller settles; `given up` if it is no longer
   * awaited; undefined if no request has that number: the peer breaks the protocol
   */
  take(correlation: number): PendingRequest | 'given up' | undefined {
    const pending = this.#find(correlation)
    // One that was not sent cannot have any.
    if (pending !== undefined && !pending.sent) return undefined
    const request = pending ?? this.#abandoned.get(correlation)
    if (request === undefined) return undefined
    if (pending === undefined) this.#abandoned.delete(correlation)
    else {
      this.#remove(pending)
      this.#latency?.record(Math.max(1, Math.round((performance.now() - pending.begun) * 1e6)))
    }
    this.#allowance.leave(request)
    return pending ?? 'given up'
  }

  /** The request is given up. */
  giveUp(request: PendingRequest, reason: unknown): void {
    if (!this.has(request)) return
    this.#remove(request)
    request.reject(reason)
    // The peer has its memory again when it has answered; it knows nothing of an unsent request.
    if (request.sent) this.#abandoned.set(request.correlation, request)
    else this.#allowance.leave(request)
  }

  /** Nanoseconds from request to response, of those that are answered from the first call on. */
  measure(): RecordableHistogram {
    this.#latency ??= latencyHistogram()
    return this.#latency
  }

  /** Whether its response is awaited. */
  has(request: PendingRequest): boolean {
    return this.#find(request.correlation) === request
  }

  /** The connection has ended: nothing will be added any more. */
  rejectAll(reason: unknown): void {
    for (const request of this.#all()) {
      this.#remove(request)
      request.reject(reason)
    }
    clearTimeout(this.#timer)
  }

  /** Resolves when nothing is pending. */
  async idle(): Promise<void> {
    if (this.#count === 0) return
    this.#empty ??= deferred<void>()
    await this.#empty.promise
  }

  #find(correlation: number): PendingRequest | undefined {
    const request = this.#places[correlation & (this.#places.length - 1)]
    return request?.correlation === correlation ? request : undefined
  }

  #number(): number {
    if (2 * this.#count >= this.#places.length) this.#spread(2 * this.#places.length)
    do this.last = this.last === 0xffff_ffff ? 1 : this.last + 1
    while (
      this.#places[this.last & (this.#places.length - 1)] !== undefined ||
      (this.#abandoned.size > 0 && this.#abandoned.has(this.last))
    )
    return this.last
  }

  #spread(places: number): void {
    const all = this.#all()
    this.#places = new Array(places).fill(undefined)
    for (const request of all) this.#places[request.correlation & (places - 1)] = request
  }

  /** From the oldest on, but for those that are behind by more than all places. */
  #all(): PendingRequest[] {
    const { length } = this.#places
    const all: PendingRequest[] = []
    for (let ahead = 1; ahead <= length; ahead++) {
      const request = this.#places[(this.last + ahead) & (length - 1)]
      if (request !== undefined) all.push(request)
    }
    return all
  }

  #remove(request: PendingRequest): void {
    this.#places[request.correlation & (this.#places.length - 1)] = undefined
    request.settled?.()
    this.#count--
    if (this.#count > 0) return
    if (this.#places.length > MANY) this.#spread(FEW)
    // The timer stays: the next request finds it armed early enough and need not touch it.
    this.#empty?.resolve()
    this.#empty = undefined
  }

  #arm(deadline: number): void {
    clearTimeout(this.#timer)
    this.#wakeAt = deadline
    // Answers that arrived while this thread was blocked have a turn first: see `within` of verbs.
    const late = () => void setImmediate(() => this.#expire())
    this.#timer = setTimeout(late, Math.max(1, Math.ceil(deadline - performance.now())))
    // The connection keeps the event loop alive, not its timer.
    this.#timer.unref()
  }

  #expire(): void {
    const now = performance.now()
    let next = Number.POSITIVE_INFINITY
    this.#wakeAt = next
    for (const request of this.#all()) {
      if (request.deadline > now) next = Math.min(next, request.deadline)
      else this.giveUp(request, new VerbsError('ETIMEDOUT', 'request', this.#object, this.#late(request)))
    }
    if (next < Number.POSITIVE_INFINITY) this.#arm(next)
  }

  #late({ sent }: PendingRequest): string {
    if (sent || this.#allowance.waiting === 0) return 'the peer does not answer'
    return `the peer has ${this.#allowance.used} bytes of unanswered requests, and accepts no more`
  }
}
