import { VerbsError, type WaitOptions } from '@rdmakit/verbs'
import { deferred, within } from '@rdmakit/verbs/internal'
import { Observable } from 'rxjs/internal/Observable'
import type { Subscriber } from 'rxjs/internal/Subscriber'
import { performance } from '../base/clock.js'
import { interruptible } from '../base/interruptible.js'
import { copyOf } from '../base/own-memory.js'
import { deadlineAfter, left } from '../base/timeout.js'
import { checkedLimit } from '../connection/call-options.js'
import type { RingConnection } from '../connection/connection.js'
import type { BatchOptions, RingBatch } from '../receiving/index.js'

/**
 * Connections that are kept for a slow consumer: with what had arrived, a ring each, they are memory that a
 * peer which breaks connections can make this end take.
 */
const KEPT = 16

/** The connection that a client has at the moment, and those who wait for one. */
export class CurrentConnection {
  /** @see connection */
  #connection: RingConnection | undefined
  /** the client connects no more */
  isClosing = false
  /** why the client has closed, or closes */
  reason: unknown
  /** why there is no open connection: how the last one ended, or why the last attempt failed */
  failure: unknown
  /** what errors call the client */
  readonly description: string
  /** those who wait for a connection to open, or for the client to close */
  readonly #waiting = new Set<() => void>()
  /**
   * For each who takes what comes on all connections, those that it has not come to, the last {@link KEPT}, in order: what had arrived
   * on one that is lost can still be taken
   */
  readonly #ahead = new Set<RingConnection[]>()

  constructor(description: string) {
    this.description = description
  }

  /** Open or draining; undefined while there is none. */
  get connection(): RingConnection | undefined {
    return this.#connection
  }

  set connection(connection: RingConnection | undefined) {
    this.#connection = connection
    if (connection === undefined) return
    for (const ahead of this.#ahead) {
      ahead.push(connection)
      if (ahead.length > KEPT) ahead.shift()
    }
  }

  /** Those who wait for a connection look again. */
  changed(): void {
    for (const wake of this.#waiting) wake()
  }

  /** @throws VerbsError ETIMEDOUT, ESHUTDOWN when the client closes; the signal's reason */
  async whenOpen(deadline: number, signal: AbortSignal | undefined): Promise<RingConnection> {
    const expired = () =>
      this.#because('ETIMEDOUT', 'connection', 'there is no open connection', this.failure)
    for (;;) {
      signal?.throwIfAborted()
      if (this.isClosing) throw this.shutdown()
      const ready = this.#ready
      if (ready !== undefined) return ready
      await this.#turn(deadline, expired, signal)
    }
  }

  /** @see RingClient.opened */
  opened({ signal, timeout }: WaitOptions): Promise<RingConnection> {
    return this.whenOpen(deadlineAfter('timeout', timeout), signal)
  }

  /** @see RingClient.batches */
  batches(
    way: 'batches' | 'viewBatches',
    { limit = 256, signal }: BatchOptions,
  ): AsyncGenerator<RingBatch, void, void> {
    // Now: the connection that would refuse it may come late.
    checkedLimit(limit)
    return interruptible((left) =>
      this.#batches(way, limit, signal === undefined ? left : AbortSignal.any([signal, left])),
    )
  }

  async *#batches(
    way: 'batches' | 'viewBatches',
    limit: BatchOptions['limit'],
    signal: AbortSignal,
  ): AsyncGenerator<RingBatch, void, void> {
    for await (const connection of this.#each(signal)) yield* connection[way]({ limit, signal })
  }

  /** What `work` brings on each connection, one after the other. @see RingClient.consume */
  observe<T>(work: (connection: RingConnection) => Observable<T>): Observable<T> {
    return new Observable((subscriber) => {
      const stop = new AbortController()
      let leave = () => {}
      void this.#observe(work, subscriber, stop.signal, (left) => {
        leave = left
      })
      return () => {
        stop.abort()
        leave()
      }
    })
  }

  /** @param work is over when it ends, or when what `leaves` is given is called */
  async #observe<T>(
    work: (connection: RingConnection) => Observable<T>,
    subscriber: Subscriber<T>,
    signal: AbortSignal,
    leaves: (left: () => void) => void,
  ): Promise<void> {
    try {
      for await (const connection of this.#each(signal)) {
        const { promise, resolve, reject } = deferred<void>()
        leaves(resolve)
        subscriber.add(
          work(connection).subscribe({
            next: (value) => subscriber.next(value),
            error: reject,
            complete: resolve,
          }),
        )
        await promise
      }
      subscriber.complete()
    } catch (failure) {
      subscriber.error(failure)
    }
  }

  /** Each connection, until the client closes; of those that nobody has come to, the last {@link KEPT}. */
  async *#each(signal: AbortSignal): AsyncGenerator<RingConnection, void, void> {
    const ahead = this.connection === undefined ? [] : [this.connection]
    this.#ahead.add(ahead)
    try {
      for (;;) {
        signal.throwIfAborted()
        const connection = ahead.shift()
        if (connection !== undefined) yield connection
        else if (this.isClosing) return
        else await this.#turn(Number.POSITIVE_INFINITY, () => undefined, signal)
      }
    } finally {
      this.#ahead.delete(ahead)
    }
  }

  /** Bytes for {@link whileOpen} that may change once it has returned: copied, unless their work begins before that. */
  keep(bytes: Uint8Array): Uint8Array {
    return this.#ready === undefined ? copyOf(bytes) : bytes
  }

  /**
   * Works on an open connection, at once if there is one; on the next one when the one before was lost meanwhile and
   * `again` says so.
   */
  async whileOpen<T>(
    verb: string,
    { signal, timeout }: WaitOptions,
    again: boolean,
    work: (connection: RingConnection, left: number) => Promise<T>,
  ): Promise<T> {
    const deadline = deadlineAfter('timeout', timeout)
    for (;;) {
      signal?.throwIfAborted()
      const connection = this.#ready ?? (await this.whenOpen(deadline, signal))
      try {
        return await work(connection, left(deadline))
      } catch (failure) {
        if (connection.isOpen || signal?.aborted || !(failure instanceof VerbsError)) throw failure
        // It began to close before anything was sent, so the peer does not have it.
        if (failure.code === 'ESHUTDOWN') continue
        if (failure.code === 'EMSGSIZE' || performance.now() >= deadline) throw failure
        if (!again) throw this.#because('ECONNRESET', verb, 'the connection was lost before the end', failure)
      }
    }
  }

  /** The connection, if it is open and the client is not closing. */
  get #ready(): RingConnection | undefined {
    return !this.isClosing && this.connection?.isOpen ? this.connection : undefined
  }

  /** Why nothing can be sent any more. */
  shutdown(): VerbsError {
    return this.#because('ESHUTDOWN', 'send', 'the client is closed', this.reason)
  }

  /** Waits until something has become of the connection. */
  async #turn(deadline: number, expired: () => unknown, signal: AbortSignal | undefined): Promise<void> {
    // Each has a promise of its own: one that all share would keep all who ever waited for it.
    const { promise, resolve } = deferred<void>()
    this.#waiting.add(resolve)
    try {
      await within(promise, left(deadline), expired, signal)
    } finally {
      this.#waiting.delete(resolve)
    }
  }

  /** An error with its cause, if it has one. */
  #because(code: string, verb: string, detail: string, cause: unknown): VerbsError {
    if (cause === undefined) return new VerbsError(code, verb, this.description, detail)
    const why = (cause as { message?: unknown } | null)?.message ?? cause
    const failure = new VerbsError(code, verb, this.description, `${detail}: ${why}`)
    failure.cause = cause
    return failure
  }
}
