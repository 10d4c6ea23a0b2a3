import { UsageError } from '@rdmakit/verbs'
import { integerInRange, onAbort } from '@rdmakit/verbs/internal'
import type { ObservableInput, Subscription } from 'rxjs'
import { Observable } from 'rxjs/internal/Observable'
import { from } from 'rxjs/internal/observable/from'
import { Subject } from 'rxjs/internal/Subject'
import { interruptible } from '../base/interruptible.js'
import { isPromise } from '../base/is-promise.js'
import { checkDrainLimit } from '../connection/call-options.js'
import { RingBatch } from './batch.js'
import { type RingMessage, RingView } from './message.js'
import { Place } from './place.js'

type Entry = RingMessage | Place

/** The form in which a message is delivered: a copy, which stays valid, or a view of the ring, to be released. */
export type Form = 'copies' | 'views'

export interface BatchOptions {
  /** messages in a batch at most, 1 … 65536, default 256 */
  readonly limit?: number | undefined
  /** ends the iteration with its reason */
  readonly signal?: AbortSignal | undefined
}

/** The connection's link, as draining uses it. */
export interface DrainedLink {
  /** gets data that comes while the poller is drained */
  drainer: ((view: RingView) => void) | undefined
  readonly poller: { drain(limit: number): number; look(): boolean; takeSeen(limit: number): number }
}

/** A taker of messages. Only one kind at a time: two in turn would each see half of the messages. */
type Taker = () => void

/**
 * Delivers messages in order, from the ring to their taker. Without a taker they wait here, and in the ring, which
 * stalls the sender.
 */
export class Inbox {
  readonly #copies = new Subject<RingMessage>()
  readonly #views = new Subject<RingMessage>()
  #queue: Entry[] = []
  #first = 0
  #taker: Taker | undefined
  #ended = false
  #discarding = false
  #pumping = false
  readonly #view = new RingView()
  #callback: (view: RingView) => void = () => {}
  #drained = 0
  #draining: DrainedLink | undefined
  readonly #count = (view: RingView) => {
    this.#drained++
    this.#callback(view)
  }

  /** Messages that wait, with those that are under way. */
  get waiting(): number {
    return this.#queue.length - this.#first
  }

  /** The next message of the peer. */
  arrive(message: RingMessage): void {
    if (this.waiting === 0 && this.#observed) {
      this.#hand(message)
      return
    }
    if (this.#unwanted) {
      message.release()
      return
    }
    this.#queue.push(message)
    this.#taker?.()
  }

  /** Keeps the place of the next message, which comes later. */
  hold(): Place {
    const place = new Place((settled) => this.#settle(settled))
    if (this.#unwanted) place.discard()
    else this.#queue.push(place)
    if (this.#draining !== undefined) this.#draining.drainer = undefined
    return place
  }

  /**
   * No more will come. Waiting messages can still be taken, also by late takers: they move out of the ring,
   * which is then free whether they are taken or not.
   */
  end(): void {
    this.#ended = true
    this.#pump()
    for (const subject of [this.#copies, this.#views]) if (subject.observed) subject.complete()
    const queue = this.#queue.slice(this.#first)
    this.#first = 0
    this.#queue = []
    for (const entry of queue) {
      const message = isPlace(entry) ? entry.message : entry
      if (message) this.#queue.push(message.move())
      if (isPlace(entry)) entry.gone()
    }
  }

  /** Releases waiting messages, and later ones while there is no taker. */
  discardUntaken(): void {
    this.#discarding = true
    if (this.#unwanted) this.discard()
  }

  /** Releases all waiting messages, even if there is a taker, and later ones while there is none. */
  discard(): void {
    this.#discarding = true
    const queue = this.#queue.slice(this.#first)
    this.#queue = []
    this.#first = 0
    for (const entry of queue) {
      if (isPlace(entry)) entry.discard()
      else entry.release()
    }
  }

  /** @see RingConnection.messages */
  observe(form: Form): Observable<RingMessage> {
    const [subject, other] = form === 'copies' ? [this.#copies, this.#views] : [this.#views, this.#copies]
    return new Observable((subscriber) => {
      if (this.#taker !== undefined || other.observed) throw taken()
      const subscription: Subscription = subject.subscribe(subscriber)
      this.#pump()
      if (this.#ended) subscriber.complete()
      return subscription
    })
  }

  /** @see RingConnection.batches */
  batches(form: Form, limit: number, signal?: AbortSignal): AsyncGenerator<RingBatch, void, void> {
    return interruptible((left) => this.#batches(form, limit, signal, left))
  }

  async *#batches(
    form: Form,
    limit: number,
    signal: AbortSignal | undefined,
    left: AbortSignal,
  ): AsyncGenerator<RingBatch, void, void> {
    let wake: (() => void) | undefined
    const taker = () => wake?.()
    this.#claimTurn(taker)
    const stops = [signal, left].map((one) => onAbort(one, taker))
    let batch: RingBatch | undefined
    try {
      for (;;) {
        signal?.throwIfAborted()
        if (left.aborted) return
        const messages: RingMessage[] = []
        while (messages.length < limit) {
          const message = this.#next()
          if (message === undefined) break
          messages.push(given(message, form))
        }
        if (messages.length > 0) {
          batch = new RingBatch(messages)
          yield batch
          batch.release()
        } else if (this.#ended && this.waiting === 0) return
        else
          await new Promise<void>((resolve) => {
            wake = resolve
          })
      }
    } finally {
      batch?.release()
      for (const stop of stops) stop()
      this.#taker = undefined
    }
  }

  /** @see RingConnection.consume */
  consume<T>(
    form: Form,
    project: (message: RingMessage) => ObservableInput<T>,
    concurrency: number,
  ): Observable<T> {
    integerInRange('concurrency', concurrency, 1, 65_536)
    return new Observable<T>((subscriber) => {
      const active = new Set<RingMessage>()
      const done = (message: RingMessage) => active.delete(message) && message.release()
      // However it ends, the messages are free for the next taker, before this one is told.
      const leave = () => {
        if (this.#taker === take) this.#taker = undefined
        for (const message of active) done(message)
      }
      const fail = (failure: unknown) => {
        leave()
        subscriber.error(failure)
      }
      const start = (message: RingMessage) => {
        active.add(message)
        try {
          const work = project(message)
          // A promise cannot be stopped: it may read its message until it settles, even without a listener.
          if (isPromise<T>(work)) {
            active.delete(message)
            working++
            const settled = () => {
              working--
              message.release()
              take()
            }
            work.then(settled, settled)
          }
          const inner = from(work).subscribe({
            next: (value) => subscriber.next(value),
            error: fail,
            complete: () => {
              done(message)
              take()
            },
          })
          subscriber.add(inner)
        } catch (failure) {
          fail(failure)
        }
      }
      let working = 0
      let taking = false
      const take = () => {
        // A taker that finishes at once comes back here; the loop below continues for it.
        if (taking || subscriber.closed) return
        taking = true
        while (active.size + working < concurrency && !subscriber.closed) {
          const message = this.#next()
          if (message === undefined) break
          start(given(message, form))
        }
        taking = false
        if (this.#ended && active.size + working === 0 && this.waiting === 0) subscriber.complete()
      }
      this.#claimTurn(take)
      subscriber.add(leave)
      take()
    })
  }

  /** @see RingConnection.drain */
  drain(callback: (view: RingView) => void, limit: number, link: DrainedLink): number {
    if (limit !== limit >>> 0) checkDrainLimit(limit)
    this.#mayTake()
    const { poller } = link
    // Nearly every call of a program that polls finds nothing.
    const looked = this.#queue.length === 0
    if (looked && !poller.look()) return 0
    this.#taker = NOBODY
    this.#drained = 0
    this.#callback = callback
    try {
      while (this.#drained < limit && this.#queue.length > 0) {
        const message = this.#next()
        if (message === undefined) break
        try {
          message.show(this.#view)
          this.#drained++
          callback(this.#view)
        } finally {
          this.#view.clear()
          message.release()
        }
      }
      // Behind one that is under way, those that come must wait here for their turn.
      this.#draining = link
      if (this.#queue.length === 0) link.drainer = this.#count
      // Without more to take, messages sent meanwhile are still posted.
      if (looked) poller.takeSeen(limit)
      else poller.drain(limit - this.#drained)
    } finally {
      link.drainer = undefined
      this.#draining = undefined
      this.#taker = undefined
    }
    return this.#drained
  }

  /** The first waiting message, if it is there. */
  #next(): RingMessage | undefined {
    for (;;) {
      const entry = this.#queue[this.#first]
      if (entry === undefined) return undefined
      const message = isPlace(entry) ? entry.message : entry
      if (message === undefined) return undefined
      this.#first++
      if (this.#first === this.#queue.length || this.#first > 1024) {
        this.#queue = this.#queue.slice(this.#first)
        this.#first = 0
      }
      if (isPlace(entry)) entry.gone()
      if (message !== null) return message
    }
  }

  #hand(message: RingMessage): void {
    if (this.#copies.observed) this.#copies.next(message.move())
    else {
      this.#views.next(message)
      message.release()
    }
  }

  get #observed(): boolean {
    return this.#copies.observed || this.#views.observed
  }

  get #unwanted(): boolean {
    return this.#discarding && this.#taker === undefined && !this.#observed
  }

  /** An expected message is there, or will not come. */
  #settle(place: Place): void {
    // Without a message it must not stay until those before it are taken.
    if (place.message === null) {
      const at = this.#queue.indexOf(place, this.#first)
      if (at >= 0) this.#queue.splice(at, 1)
    }
    this.#pump()
  }

  /** Something at the front may have become ready. */
  #pump(): void {
    this.#taker?.()
    if (this.#pumping) return
    this.#pumping = true
    while (this.#observed) {
      const message = this.#next()
      if (message === undefined) break
      this.#hand(message)
    }
    this.#pumping = false
  }

  #claimTurn(taker: Taker): void {
    this.#mayTake()
    this.#taker = taker
  }

  #mayTake(): void {
    if (this.#taker !== undefined || this.#observed) throw taken()
  }
}

/** The taker while messages are drained: they are delivered where they arrive. */
const NOBODY: Taker = () => {}

function given(message: RingMessage, form: Form): RingMessage {
  return form === 'copies' ? message.move() : message
}

function isPlace(entry: Entry): entry is Place {
  return entry instanceof Place
}

function taken(): UsageError {
  return new UsageError(
    'the messages of this connection are already being consumed: use one of messages, batches, consume, their views and drain',
  )
}
