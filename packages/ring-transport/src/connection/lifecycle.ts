import { VerbsError } from '@rdmakit/verbs'
import { deferred, within } from '@rdmakit/verbs/internal'
import type { Observable } from 'rxjs'
import { ReplaySubject } from 'rxjs/internal/ReplaySubject'
import { DEFAULT_TIMEOUT_MS, milliseconds } from '../base/timeout.js'
import type { RingLink } from '../link/ring-link.js'
import { SEND } from '../native.js'
import type { CloseOptions } from './call-options.js'
import { Liveness } from './liveness.js'
import type { CloseReason, ConnectionState } from './states.js'

/** A connection's activity, as its end affects it. */
export interface Activity {
  /** Whether something is under way that the next message depends on. */
  isBusy(): boolean
  /** Nothing new is begun from now on. */
  stop(): void
  /** Resolves when all outstanding work has ended and this end's CLOSE is sent behind it. */
  finish(): Promise<void>
  /** Resolves when all that was sent has left. */
  drained(): Promise<void>
  /** The outstanding work, in words. */
  underWay(): string
  /** Releases waiting arrivals: all of them, or those that nobody takes. */
  discard(what: 'all' | 'untaken'): void
  /** The connection has ended, and its queue pair does nothing any more. */
  end(reason: VerbsError): Promise<void>
}

/** From open to its end, in good order or not, which comes once: what a connection's states are, and who changes them. */
export class Lifecycle {
  /** @see RingConnection.closed */
  readonly closed: Promise<CloseReason>
  /** @see RingConnection.states */
  readonly states: Observable<ConnectionState>
  readonly #link: RingLink
  readonly #activity: Activity
  readonly #closed = deferred<CloseReason>()
  readonly #peerClosed = deferred<void>()
  readonly #states = new ReplaySubject<ConnectionState>(1)
  readonly #liveness: Liveness
  #state: 'open' | 'closing' | 'ended' = 'open'
  /** this end's CLOSE is behind all that was accepted */
  #hasClosed = false
  /** the peer's CLOSE has come */
  #peerHasClosed = false
  #ending: Promise<void> | undefined
  #failure: VerbsError | undefined

  constructor(link: RingLink, activity: Activity) {
    this.#link = link
    this.#activity = activity
    this.closed = this.#closed.promise
    this.states = link.scope.observe(this.#states)
    this.#states.next({ state: 'open', epoch: this.#epoch })
    this.#liveness = new Liveness(link.liveness, {
      heard: () => link.counters.heard(),
      activity: () => link.counters.activity(),
      busy: () => activity.isBusy(),
      ping: () => link.ping() === SEND.failed && this.failed(),
      dead: (silence) => this.lost(this.#silent(silence)),
      idle: (isIdle) => link.scope.run(() => this.#rest(isIdle)),
    })
    this.#liveness.start()
    void link.id.disconnected.then((reason) => this.lost(this.#vanished(reason)))
  }

  get isOpen(): boolean {
    return this.#state === 'open'
  }

  get peerHasClosed(): boolean {
    return this.#peerHasClosed
  }

  /** @see RingConnection.close */
  async close({ drain = true, timeout = DEFAULT_TIMEOUT_MS }: CloseOptions = {}): Promise<void> {
    const limit = milliseconds('timeout', timeout)
    // Accepted messages count as delivered at the peer.
    const discard = () => this.#activity.discard(drain ? 'untaken' : 'all')
    discard()
    const late = () => this.#undrained()
    if (!drain) await this.end(undefined)
    else if (this.#state === 'open')
      await this.#link.scope.run(() => this.#shutdown(limit, this.#peerClosed.promise))
    // Another call has begun to close already, and may allow more time.
    else await within(this.closed, limit, late).catch((failure: VerbsError) => this.end(failure))
    await this.closed
    discard()
  }

  /** The peer's CLOSE has arrived: nothing from the peer follows it. */
  closedByPeer(): void {
    this.#peerHasClosed = true
    this.#peerClosed.resolve()
    if (this.#state === 'open') void this.#shutdown(DEFAULT_TIMEOUT_MS, this.#link.id.disconnected)
  }

  /**
   * Breaks the connection because a later one of its session has connected. When this resolves, nothing
   * of it is delivered any more, not even what had arrived.
   */
  async abandon(epoch: number): Promise<void> {
    const detail = `epoch ${epoch} of its session has connected`
    this.#activity.discard('all')
    this.lost(new VerbsError('ESTALE', 'connection', this.#link.id.description, detail))
    await this.closed
    this.#activity.discard('all')
  }

  /** The queue pair accepts no more requests. @returns the error with which it ends */
  failed(): VerbsError {
    const reason = this.#reset('the queue pair accepts no more work requests')
    this.lost(reason)
    return reason
  }

  /** The queue pair or the connection failed. A failure is reported by several sources in any order; EPROTO is the most specific. */
  lost(reason: VerbsError): void {
    if (this.#failure === undefined || reason.code === 'EPROTO') this.#failure = reason
    void this.end(reason)
  }

  end(reason: CloseReason): Promise<void> {
    this.#ending ??= this.#link.scope.run(() => this.#finish(reason))
    return this.#ending
  }

  /**
   * Both ends do the same: finish outstanding work, send CLOSE, wait for the end of the other. The end that
   * began waits for the peer's CLOSE and disconnects; the other waits for that, so that its own CLOSE is not
   * lost with the queue pair.
   */
  async #shutdown(timeout: number, other: Promise<unknown>): Promise<void> {
    this.#state = 'closing'
    this.#activity.stop()
    this.#states.next({ state: 'draining', epoch: this.#epoch })
    const drain = async () => {
      await this.#activity.finish()
      this.#hasClosed = true
      await this.#activity.drained()
      await other
    }
    try {
      // The awaited message may never come if the connection is broken meanwhile.
      const drained = Promise.race([drain(), this.closed])
      await within(drained, timeout, () => this.#undrained())
      await this.end(undefined)
    } catch (failure) {
      await this.end(failure instanceof VerbsError ? failure : undefined)
    }
  }

  async #finish(reason: CloseReason): Promise<void> {
    this.#state = 'ended'
    this.#liveness.stop()
    const lost = this.#failure !== undefined
    try {
      this.#link.id.disconnect()
    } catch {
      // It is disconnected already, as intended.
    }
    await this.#link.destroy()
    // All arrivals have been received by now: perhaps the peer's CLOSE, after which a lost connection is an orderly
    // end, or the peer's violation.
    const latest = lost ? this.#failure : reason
    const final =
      lost && this.#peerHasClosed && this.#hasClosed && latest?.code === 'ECONNRESET' ? undefined : latest
    const description = this.#link.id.description
    const failure = final ?? new VerbsError('ECANCELED', 'request', description, 'it was closed')
    const epoch = this.#epoch
    this.#states.next(
      final === undefined ? { state: 'closed', epoch } : { state: 'lost', epoch, reason: final },
    )
    this.#states.complete()
    const ended = this.#activity.end(failure)
    this.#peerClosed.resolve()
    await ended
    this.#closed.resolve(final)
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

  /** The work for which draining waited tells whose fault it is: a handler that awaits close() waits for itself. */
  #undrained(): VerbsError {
    return this.#reset(`draining takes too long: ${this.#activity.underWay() || 'the peer does not close'}`)
  }

  #silent(milliseconds: number): VerbsError {
    const detail = `the peer was silent for ${Math.round(milliseconds)} ms`
    return new VerbsError('ETIMEDOUT', 'heartbeat', this.#link.id.description, detail)
  }

  /** A device's ECONNABORTED, a queue pair that failed at the peer, means that the peer broke the connection. */
  #vanished(reason: VerbsError | undefined): VerbsError {
    if (reason === undefined) return this.#reset('the peer vanished')
    return reason.code === 'ECONNABORTED' ? this.#reset('the queue pair of the peer failed') : reason
  }

  #reset(detail: string): VerbsError {
    return new VerbsError('ECONNRESET', 'connection', this.#link.id.description, detail)
  }
}
