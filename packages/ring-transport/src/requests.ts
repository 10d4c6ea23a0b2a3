import { type Deferred, deferred, VerbsError } from '@rdmakit/verbs'

interface Pending extends Deferred<Uint8Array> {
  readonly deadline: number
}

/** Requests that wait for their response. One timer serves them all: requests outnumber timeouts by far. */
export class PendingRequests {
  readonly #pending = new Map<number, Pending>()
  readonly #object: string
  #last = 0
  #timer: NodeJS.Timeout | undefined
  #wakeAt = Number.POSITIVE_INFINITY
  #empty: Deferred<void> | undefined

  /** @param object what errors call the connection */
  constructor(object: string) {
    this.#object = object
  }

  get count(): number {
    return this.#pending.size
  }

  /** Number of the request, for its frame, and the promise of its response. */
  add(timeout: number): { correlation: number; response: Promise<Uint8Array> } {
    const correlation = ++this.#last
    const deadline = performance.now() + timeout
    const pending: Pending = { ...deferred<Uint8Array>(), deadline }
    this.#pending.set(correlation, pending)
    if (deadline < this.#wakeAt) this.#arm(deadline)
    return { correlation, response: pending.promise }
  }

  /** @returns false for a number that was never given out: the peer breaks the protocol */
  settle(correlation: number, settle: (pending: Deferred<Uint8Array>) => void): boolean {
    if (correlation < 1 || correlation > this.#last) return false
    // A number that is not there any more timed out or was aborted; its late response is dropped.
    const pending = this.#pending.get(correlation)
    if (pending !== undefined) {
      this.#remove(correlation)
      settle(pending)
    }
    return true
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
    this.#timer = setTimeout(() => this.#expire(), Math.max(1, Math.ceil(deadline - performance.now())))
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
      this.#remove(correlation)
      pending.reject(new VerbsError('ETIMEDOUT', 'request', this.#object, 'the peer does not answer'))
    }
    if (next < Number.POSITIVE_INFINITY) this.#arm(next)
  }
}
