import { UsageError } from '@rdmakit/verbs'
import { from, Observable, type ObservableInput, Subject, type Subscription } from 'rxjs'
import { RingBatch } from './batch.js'
import type { Link } from './link.js'
import { type RingMessage, RingView } from './message.js'

/** @internal a place in the order of messages for one that is not there yet: a large one, under way */
export class Place {
  /** the message, null when there will be none, undefined while it is under way */
  message: RingMessage | null | undefined
  readonly #settled: () => void
  #discarded = false

  constructor(settled: () => void) {
    this.#settled = settled
  }

  /** @param message null: there is none after all, what comes behind it goes on */
  settle(message: RingMessage | null): void {
    if (this.message !== undefined) return
    this.message = message
    if (this.#discarded) message?.release()
    else this.#settled()
  }

  /** Nobody wants the message any more, whenever it comes. */
  discard(): void {
    this.#discarded = true
    this.message?.release()
  }
}

type Entry = RingMessage | Place

/** Who takes messages. One kind at a time: two that take turns would each see half of them. */
type Taker = () => void

/**
 * Messages in their order, from the ring to whoever takes them. What nobody takes waits here, and in the
 * ring, which stalls the sender.
 */
export class Inbox {
  readonly #subject = new Subject<RingMessage>()
  readonly #copy: boolean
  #queue: Entry[] = []
  #first = 0
  #taker: Taker | undefined
  #ended = false
  #pumping = false
  readonly #view = new RingView()
  #callback: (view: RingView) => void = () => {}
  #drained = 0
  #draining: Link | undefined
  readonly #count = (view: RingView) => {
    this.#drained++
    this.#callback(view)
  }

  /** @param copy who takes a message gets it in memory of its own */
  constructor(copy: boolean) {
    this.#copy = copy
  }

  /** Messages that wait, with those that are under way. */
  get waiting(): number {
    return this.#queue.length - this.#first
  }

  /** The next message of the peer. */
  arrive(message: RingMessage): void {
    if (this.waiting === 0 && this.#subject.observed) {
      this.#hand(message)
      return
    }
    this.#queue.push(message)
    this.#taker?.()
  }

  /** Keeps the place of the next message, which comes later. */
  hold(): Place {
    const place = new Place(() => this.#pump())
    this.#queue.push(place)
    if (this.#draining !== undefined) this.#draining.drainer = undefined
    return place
  }

  /** No more will come. What waits can still be taken by those who take already. */
  end(): void {
    this.#ended = true
    if (this.#subject.observed) this.#subject.complete()
    this.#taker?.()
  }

  /** Lets go of all that waits. */
  discard(): void {
    const queue = this.#queue.slice(this.#first)
    this.#queue = []
    this.#first = 0
    for (const entry of queue) {
      if (isPlace(entry)) entry.discard()
      else entry.release()
    }
  }

  /** @see RingConnection.messages */
  observe(): Observable<RingMessage> {
    return new Observable((subscriber) => {
      if (this.#taker !== undefined) throw taken()
      const subscription: Subscription = this.#subject.subscribe(subscriber)
      this.#pump()
      if (this.#ended) subscriber.complete()
      return subscription
    })
  }

  /** @see RingConnection.batches */
  async *batches(limit: number, signal: AbortSignal | undefined): AsyncGenerator<RingBatch, void, void> {
    let wake: (() => void) | undefined
    const taker = () => wake?.()
    this.#claimTurn(taker)
    signal?.addEventListener('abort', taker)
    let batch: RingBatch | undefined
    try {
      for (;;) {
        signal?.throwIfAborted()
        const messages: RingMessage[] = []
        while (messages.length < limit) {
          const message = this.#next()
          if (message === undefined) break
          messages.push(this.#given(message))
        }
        if (messages.length > 0) {
          batch = new RingBatch(messages)
          yield batch
          batch.release()
        } else if (this.#ended) return
        else
          await new Promise<void>((resolve) => {
            wake = resolve
          })
      }
    } finally {
      batch?.release()
      signal?.removeEventListener('abort', taker)
      this.#taker = undefined
    }
  }

  /** @see RingConnection.consume */
  consume<T>(project: (message: RingMessage) => ObservableInput<T>, concurrency: number): Observable<T> {
    return new Observable<T>((subscriber) => {
      const active = new Set<RingMessage>()
      const done = (message: RingMessage) => active.delete(message) && message.release()
      const start = (message: RingMessage) => {
        active.add(message)
        try {
          const inner = from(project(message)).subscribe({
            next: (value) => subscriber.next(value),
            error: (failure) => subscriber.error(failure),
            complete: () => {
              done(message)
              take()
            },
          })
          subscriber.add(inner)
        } catch (failure) {
          subscriber.error(failure)
        }
      }
      let taking = false
      const take = () => {
        // One that is done at once comes back here; the loop below goes on for it.
        if (taking) return
        taking = true
        while (active.size < concurrency && !subscriber.closed) {
          const message = this.#next()
          if (message === undefined) break
          start(this.#given(message))
        }
        taking = false
        if (this.#ended && active.size === 0 && this.waiting === 0) subscriber.complete()
      }
      this.#claimTurn(take)
      // However it ends, what was in work gives its memory back.
      subscriber.add(() => {
        this.#taker = undefined
        for (const message of active) done(message)
      })
      take()
    })
  }

  /** @see RingConnection.drain */
  drain(callback: (view: RingView) => void, limit: number, link: Link): number {
    if (this.#taker !== undefined || this.#subject.observed) throw taken()
    this.#drained = 0
    this.#callback = callback
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
    if (this.#drained === limit) return limit
    // Behind one that is under way, those that come must wait here for their turn.
    this.#draining = link
    if (this.#queue.length === 0) link.drainer = this.#count
    try {
      link.poller.drain(limit - this.#drained)
    } finally {
      link.drainer = undefined
      this.#draining = undefined
    }
    return this.#drained
  }

  /** The first that waits, if it is there. */
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
      if (message !== null) return message
    }
  }

  #hand(message: RingMessage): void {
    const given = this.#given(message)
    this.#subject.next(given)
    given.release()
  }

  #given(message: RingMessage): RingMessage {
    return this.#copy ? message.moved() : message
  }

  /** Something at the front may have become ready. */
  #pump(): void {
    this.#taker?.()
    if (this.#pumping) return
    this.#pumping = true
    while (this.#subject.observed) {
      const message = this.#next()
      if (message === undefined) break
      this.#hand(message)
    }
    this.#pumping = false
  }

  #claimTurn(taker: Taker): void {
    if (this.#taker !== undefined || this.#subject.observed) throw taken()
    this.#taker = taker
  }
}

function isPlace(entry: Entry): entry is Place {
  return entry instanceof Place
}

function taken(): UsageError {
  return new UsageError(
    'the messages of this connection are taken already: use one of messages, batches, consume and drain',
  )
}
