import { VerbsError } from '@rdmakit/verbs'
import type { Observable } from 'rxjs'
import { Subject } from 'rxjs/internal/Subject'
import { TYPE } from '../native.js'
import type { RingMessage } from '../receiving/message.js'
import { encodeError } from '../requests/remote-error.js'
import { decodeOffer, encodeProgress, MAX_OFFERS, PROGRESS } from './format.js'
import type { TransferHost } from './host.js'
import { TransferMemory } from './memory.js'
import { type OfferSink, RingOffer } from './offer.js'
import { Reads } from './reads.js'

const EMPTY = new Uint8Array()

/** Large messages that the peer offers. */
export class Incoming {
  readonly reads: Reads
  readonly memory: TransferMemory
  /** {@link RingConnection.offers} */
  readonly offers: Observable<RingOffer>
  readonly #subject = new Subject<RingOffer>()
  readonly #host: TransferHost
  readonly #maxMessageSize: number
  /** by their number, until they are settled */
  readonly #outstanding = new Map<number, RingOffer>()
  /** bytes of each, as last reported to its sender */
  readonly #told = new Map<number, number>()
  /** messages under way to their places */
  readonly #receiving = new Set<Promise<void>>()
  #ended = false

  constructor(host: TransferHost, maxTransferMemory: number, maxMessageSize: number) {
    this.#host = host
    this.reads = new Reads(host)
    this.memory = new TransferMemory(host, maxTransferMemory)
    this.#maxMessageSize = maxMessageSize
    this.offers = this.#subject.asObservable()
  }

  /** Offers that are not settled. */
  get count(): number {
    return this.#outstanding.size
  }

  /**
   * An offer frame.
   * @returns what the peer did wrong, if anything
   */
  offered(frame: RingMessage): string | undefined {
    const fields = decodeOffer(frame.copy())
    if (typeof fields === 'string') return fields
    const { correlation, immediate } = frame
    const known = this.#outstanding.get(correlation)
    if (fields.length === 0) {
      // One that is settled already has crossed this on its way.
      known?.end(new VerbsError('ECANCELED', 'accept', this.#host.object, 'the sender withdrew it'))
      return undefined
    }
    if (known !== undefined) return 'an offer with the number of an unsettled one'
    if (this.#outstanding.size === MAX_OFFERS) return `more than ${MAX_OFFERS} offers at a time`
    const sink: OfferSink = {
      progress: (offer, transferred) => this.#progress(offer, transferred),
      settle: (offer, failure) => this.#settle(offer, failure),
    }
    const offer = new RingOffer(this.#host, this.reads, this.memory, sink, fields, { correlation, immediate })
    this.#outstanding.set(correlation, offer)
    if (this.#subject.observed) this.#subject.next(offer)
    else if (offer.length > this.#maxMessageSize) offer.reject(this.#tooLong(offer.length))
    else this.#hold(offer)
    return undefined
  }

  /**
   * The connection has ended, and its queue pair does nothing any more. Resolves when all places are settled:
   * what has been read is there by then.
   */
  async end(reason: unknown): Promise<void> {
    this.#ended = true
    this.reads.end(reason)
    this.memory.end(reason)
    for (const offer of [...this.#outstanding.values()]) offer.end(reason)
    this.#subject.complete()
    await Promise.all(this.#receiving)
  }

  /** No program listens for offers: it becomes a message like any other, in its place. */
  #hold(offer: RingOffer): void {
    const received = this.#receive(offer)
    this.#receiving.add(received)
    void received.then(() => this.#receiving.delete(received))
  }

  async #receive(offer: RingOffer): Promise<void> {
    const place = this.#host.hold()
    let message: RingMessage | null = null
    try {
      message = await offer.accept()
    } catch {
      // The sender has been told, or the connection has ended, which is said elsewhere.
    }
    place.settle(message)
  }

  #tooLong(length: number): VerbsError {
    const detail = `the message is ${length} bytes, it takes ${this.#maxMessageSize}`
    return new VerbsError('EMSGSIZE', 'transmit', 'the peer', detail)
  }

  #progress({ correlation, fields, length }: RingOffer, transferred: number): void {
    const { progressEvery } = fields
    if (progressEvery === 0 || transferred === length || this.#ended) return
    if (transferred - (this.#told.get(correlation) ?? 0) < progressEvery) return
    const frame = { type: TYPE.settled, correlation, immediate: PROGRESS }
    try {
      // One that finds no room is left out.
      if (this.#host.send(frame, encodeProgress(transferred))) this.#told.set(correlation, transferred)
    } catch {
      // The queue pair has failed, which ends the connection and is reported there. Data that were read stay valid.
    }
  }

  #settle({ correlation }: RingOffer, failure: unknown): void {
    this.#told.delete(correlation)
    const forget = () => this.#outstanding.delete(correlation)
    const bytes = failure === undefined ? EMPTY : encodeError(failure)
    if (this.#ended) {
      forget()
      return
    }
    // A peer that takes no answers cannot offer more than MAX_OFFERS all the same. One that has its answer may
    // use the number again at once: it must be free as soon as the frame is laid out.
    const posted = this.#host.post({ type: TYPE.settled, correlation }, bytes, undefined, forget)
    posted?.catch(forget)
  }
}
