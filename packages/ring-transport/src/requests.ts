import type { RecordableHistogram } from 'node:perf_hooks'
import { type Deferred, deferred, VerbsError } from '@rdmakit/verbs'
import { Allowance, requestCost, type Turn } from './allowance.js'
import { clearTimeout, performance, setImmediate, setTimeout } from './clock.js'

interface Pending extends Deferred<Uint8Array> {
  /** milliseconds of performance.now() */
  readonly begin: number
  readonly deadline: number
  /** what it takes of the peer's memory; undefined before it waits for that */
  turn: Turn | undefined
  /** whether the peer may answer */
  sent: boolean
}

/** Requests that wait for their response. One timer serves them all: requests outnumber timeouts by far. */
export class PendingRequests {
  readonly #pending = new Map<number, Pending>()
  /**
   * Requests that timed out or were aborted, and are not answered yet: their numbers are not to be used again, and
   * they take of the peer's memory. That bounds them.
   */
  readonly #abandoned = new Map<number, Turn>()
  readonly #allowance: Allowance
  readonly #object: string
  /** nanoseconds from request to response, of those that are answered from when it is set */
  latency: RecordableHistogram | undefined
  /** the number given out last: 1 … 2^32 − 1, then from 1 again */
  last = 0
  #timer: NodeJS.Timeout | undefined
  #wakeAt = Number.POSITIVE_INFINITY
  #empty: Deferred<void> | undefined

  /**
   * @param object what errors call the connection
   * @param allowance bytes of the peer's memory that they may take
   */
  constructor(object: string, allowance: number) {
    this.#object = object
    this.#allowance = new Allowance(allowance)
  }

  get count(): number {
    return this.#pending.size
  }

  /** Number of the request, for its frame, and the promise of its response. */
  add(timeout: number): { correlation: number; response: Promise<Uint8Array> } {
    const correlation = this.#number()
    const begin = performance.now()
    const deadline = begin + timeout
    const pending: Pending = { ...deferred<Uint8Array>(), begin, deadline, turn: undefined, sent: false }
    this.#pending.set(correlation, pending)
    if (deadline < this.#wakeAt) this.#arm(deadline)
    return { correlation, response: pending.promise }
  }

  /**
   * Sends the request when the peer has memory for it: until then it waits here, in order.
   * @param bytes are copied when they have to wait, so that they may change once this returns
   * @param send is called at most once, and not when it has been given up meanwhile
   */
  ask(correlation: number, bytes: Uint8Array, send: (bytes: Uint8Array) => void): void {
    const pending = this.#pending.get(correlation)
    if (pending === undefined) return
    const cost = requestCost(bytes.length)
    const kept = this.#allowance.fits(cost) ? bytes : bytes.slice()
    pending.turn = this.#allowance.enter(cost, () => send(kept))
  }

  /**
   * A response has come.
   * @returns false when nobody waits for one of that number: the peer breaks the protocol
   */
  answer(correlation: number, settle: (pending: Deferred<Uint8Array>) => void): boolean {
    const pending = this.#pending.get(correlation)
    // One that timed out or was aborted gets no response any more, one that was not sent cannot have any.
    const turn = pending === undefined ? this.#abandoned.get(correlation) : pending.sent && pending.turn
    if (!turn) return false
    if (pending === undefined) this.#abandoned.delete(correlation)
    else {
      this.#remove(correlation)
      this.latency?.record(Math.max(1, Math.round((performance.now() - pending.begin) * 1e6)))
      settle(pending)
    }
    this.#allowance.leave(turn)
    return true
  }

  /** The request is on its way: a response may come even when nobody waits for it any more. */
  sent(correlation: number): void {
    const pending = this.#pending.get(correlation)
    if (pending !== undefined) pending.sent = true
  }

  /** The request is given up. */
  reject(correlation: number, reason: unknown): void {
    const pending = this.#pending.get(correlation)
    if (pending !== undefined) this.#giveUp(correlation, pending, reason)
  }

  has(correlation: number): boolean {
    return this.#pending.has(correlation)
  }

  /** The connection has ended: nothing will be added any more. */
  rejectAll(reason: unknown): void {
    for (const [correlation, pending] of [...this.#pending]) {
      this.#remove(correlation)
      pending.reject(reason)
    }
    clearTimeout(this.#timer)
  }

  /** Resolves when nothing is pending. */
  async idle(): Promise<void> {
    if (this.#pending.size === 0) return
    this.#empty ??= deferred<void>()
    await this.#empty.promise
  }

  #number(): number {
    do this.last = this.last === 0xffff_ffff ? 1 : this.last + 1
    while (this.#pending.has(this.last) || this.#abandoned.has(this.last))
    return this.last
  }

  #giveUp(correlation: number, { sent, turn, reject }: Pending, reason: unknown): void {
    this.#remove(correlation)
    reject(reason)
    if (turn === undefined) return
    // The peer has its memory again when it has answered; of what was not sent it knows nothing.
    if (sent) this.#abandoned.set(correlation, turn)
    else this.#allowance.leave(turn)
  }

  #remove(correlation: number): void {
    this.#pending.delete(correlation)
    if (this.#pending.size > 0) return
    // The timer stays: the next request finds it armed early enough and need not touch it.
    this.#empty?.resolve()
    this.#empty = undefined
  }

  #arm(deadline: number): void {
    clearTimeout(this.#timer)
    this.#wakeAt = deadline
    // Answers that have come while this thread stood still have a turn first: see `within` of verbs.
    const late = () => void setImmediate(() => this.#expire())
    this.#timer = setTimeout(late, Math.max(1, Math.ceil(deadline - performance.now())))
    // The connection keeps the event loop alive, not its timer.
    this.#timer.unref()
  }

  #expire(): void {
    const now = performance.now()
    let next = Number.POSITIVE_INFINITY
    this.#wakeAt = next
    for (const [correlation, pending] of [...this.#pending]) {
      if (pending.deadline > now) {
        next = Math.min(next, pending.deadline)
        continue
      }
      this.#giveUp(
        correlation,
        pending,
        new VerbsError('ETIMEDOUT', 'request', this.#object, this.#late(pending)),
      )
    }
    if (next < Number.POSITIVE_INFINITY) this.#arm(next)
  }

  #late({ sent }: Pending): string {
    if (sent || this.#allowance.waiting === 0) return 'the peer does not answer'
    return `the peer has ${this.#allowance.used} bytes of requests that it has not answered, and takes no more`
  }
}
