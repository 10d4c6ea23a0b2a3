import { types } from 'node:util'
import { type ScatterGatherElement, VerbsError } from '@rdmakit/verbs'
import { type Deferred, deferred, within } from '@rdmakit/verbs/internal'
import { milliseconds, TRANSMIT_TIMEOUT_MS } from '../base/timeout.js'
import { TYPE } from '../native.js'
import type { RingMessage } from '../receiving/message.js'
import { decodeError } from '../requests/remote-error.js'
import { decodeProgress, MAX_OFFERS, PROGRESS, WITHDRAWAL } from './format.js'
import type { TransferHost } from './host.js'
import { inCallersContext, type OnProgress, tell } from './progress.js'
import { bytesOf, lengthOf, type Source, sourceOf } from './source.js'

/** How a message is transmitted. */
export interface TransmitOptions {
  /** 32 bits for the peer, which sees them as {@link RingMessage.immediate}; default 0 */
  readonly immediate?: number | undefined
  /** ends the wait with its reason; what the peer has not taken yet it will not get */
  readonly signal?: AbortSignal | undefined
  /** milliseconds until the peer must have all of it, default 60000 */
  readonly timeout?: number | undefined
  /** called now and then with the bytes that the peer has, which only grow, and those of the message */
  readonly onProgress?: OnProgress | undefined
}

/** Bytes of the largest message that goes through the ring: of a program's own bytes, and of a slice of a region. */
interface Thresholds {
  readonly rendezvousThreshold: number
  readonly regionThreshold: number
}

interface Transfer extends Deferred<void> {
  readonly length: number
  readonly onProgress: OnProgress | undefined
  transferred: number
  /** the caller waits no more */
  over: boolean
  /** the offer has left: from here on the peer may be reading, until it settles */
  offered: boolean
  readonly source: Source
}

/** The peer tells how far it is a hundred times, but not for less than this many bytes. */
const LEAST_PROGRESS = 2 ** 20
const PROGRESS_TIMES = 100

/** Large messages that this end has offered or will offer. */
export class Outgoing {
  readonly #host: TransferHost
  readonly #thresholds: Thresholds
  /** offers by their number, until the peer has settled them: it may read as long */
  readonly #offers = new Map<number, Transfer>()
  /** free places for offers: {@link MAX_OFFERS} less the offers and those whose turn it is */
  #free = MAX_OFFERS
  /** those that wait for a place, while none is free */
  readonly #waiting = new Set<Deferred<void>>()
  /** the number given out last: 1 … 2^32 − 1, then from 1 again */
  last = 0
  #running = 0
  #idle: Deferred<void> | undefined
  #ended: unknown

  constructor(host: TransferHost, thresholds: Thresholds) {
    this.#host = host
    this.#thresholds = thresholds
  }

  /** Offers whose memory the peer may read. */
  get count(): number {
    return this.#offers.size
  }

  /** @see RingConnection.transmit */
  async transmit(what: Uint8Array | ScatterGatherElement, given: TransmitOptions): Promise<void> {
    const options = inCallersContext(given)
    options.signal?.throwIfAborted()
    const timeout = milliseconds('timeout', options.timeout ?? TRANSMIT_TIMEOUT_MS)
    if (this.#ended !== undefined) throw this.#ended
    this.#running++
    try {
      const length = lengthOf(what)
      await (length <= this.#threshold(what)
        ? this.#send(what, { ...options, timeout })
        : this.#offer(what, { ...options, timeout }))
      tell(options.onProgress, length, length)
    } finally {
      if (--this.#running === 0) this.#idle?.resolve()
    }
  }

  /** Resolves when nothing is being transmitted. */
  async idle(): Promise<void> {
    while (this.#running > 0) {
      this.#idle ??= deferred<void>()
      await this.#idle.promise
      this.#idle = undefined
    }
  }

  /**
   * The peer has said how far an offer is, or settled it.
   * @returns what it did wrong, if anything
   */
  settled(message: RingMessage): string | undefined {
    const { correlation, immediate } = message
    const transfer = this.#offers.get(correlation)
    // The peer cannot know of transfers that still wait for room.
    if (transfer?.offered !== true)
      return 'an end of a transfer that was never offered, or for the second time'
    if (immediate === PROGRESS) {
      const transferred = decodeProgress(message.copy())
      if (transferred === undefined || transferred > transfer.length || transferred < transfer.transferred)
        return 'an impossible progress'
      transfer.transferred = transferred
      // The last progress is reported with the end.
      if (!transfer.over && transferred < transfer.length)
        tell(transfer.onProgress, transferred, transfer.length)
      return undefined
    }
    if (immediate !== 0) return 'an end of a transfer of unknown kind'
    this.#offers.delete(correlation)
    const failure = message.length === 0 ? undefined : decodeError(message)
    const settle = () => (failure === undefined ? transfer.resolve() : transfer.reject(failure))
    const releasing = transfer.source.release()
    if (releasing === undefined) settle()
    else void releasing.then(settle)
    this.#leave()
    return undefined
  }

  /** The connection has ended: the peer reads no more. */
  end(reason: unknown): void {
    this.#ended = reason
    for (const transfer of this.#offers.values()) {
      transfer.reject(reason)
      transfer.source.release()
    }
    this.#offers.clear()
    for (const { reject } of this.#waiting) reject(reason)
    this.#waiting.clear()
  }

  #threshold(what: Uint8Array | ScatterGatherElement): number {
    const { rendezvousThreshold, regionThreshold } = this.#thresholds
    return types.isUint8Array(what) ? rendezvousThreshold : regionThreshold
  }

  /** Through the ring, like any message, but waiting for room. */
  async #send(what: Uint8Array | ScatterGatherElement, options: Bounded): Promise<void> {
    const bytes = bytesOf(what)
    const frame = { type: TYPE.data, immediate: options.immediate ?? 0 }
    let wanted = true
    const posted = this.#host.borrow(frame, bytes, () => wanted)
    if (posted === undefined) return
    try {
      await this.#bounded(posted, options)
    } finally {
      wanted = false
    }
  }

  async #offer(what: Uint8Array | ScatterGatherElement, options: Bounded): Promise<void> {
    const source = sourceOf(what, this.#host.protectionDomain)
    const transfer: Transfer = {
      ...deferred<void>(),
      source,
      length: source.length,
      onProgress: options.onProgress,
      transferred: 0,
      over: false,
      offered: false,
    }
    transfer.promise.catch(() => {})
    let correlation = 0
    const turn = deferred<void>()
    const run = async () => {
      // A message that cannot be offered yet holds no memory of the peer's, nor a place in its order.
      if (this.#free > 0) this.#free--
      else {
        this.#waiting.add(turn)
        await turn.promise
      }
      if (this.#ended !== undefined) throw this.#ended
      if (transfer.over) {
        this.#leave()
        return
      }
      correlation = this.#number()
      await this.#post(correlation, transfer, options)
      await transfer.promise
    }
    const done = run()
    try {
      await this.#bounded(done, options)
    } catch (failure) {
      transfer.over = true
      if (this.#waiting.delete(turn)) turn.reject(failure)
      if (this.#offers.get(correlation) !== transfer) source.release()
      else if (transfer.offered)
        // The memory stays until the peer has answered: a READ may be on its way.
        this.#host.post({ type: TYPE.offer, correlation }, WITHDRAWAL)?.catch(() => {})
      throw failure
    }
  }

  async #post(correlation: number, transfer: Transfer, options: Bounded): Promise<void> {
    this.#offers.set(correlation, transfer)
    const every = Math.max(LEAST_PROGRESS, Math.ceil(transfer.length / PROGRESS_TIMES))
    const offer = transfer.source.offer(options.onProgress === undefined ? 0 : Math.min(every, 0xffff_ffff))
    const frame = { type: TYPE.offer, correlation, immediate: options.immediate ?? 0 }
    const wanted = () => !transfer.over
    const onSent = () => {
      transfer.offered = true
    }
    try {
      await this.#host.post(frame, offer, wanted, onSent)
    } finally {
      if (!transfer.offered) {
        this.#offers.delete(correlation)
        transfer.source.release()
        this.#leave()
      }
    }
  }

  /** Waits for `promise`, but not beyond the time and the signal of `options`. */
  async #bounded(promise: Promise<void>, { signal, timeout }: Bounded): Promise<void> {
    const late = () =>
      new VerbsError(
        'ETIMEDOUT',
        'transmit',
        this.#host.object,
        `the peer did not take it within ${timeout} ms`,
      )
    await within(promise, timeout, late, signal)
  }

  #number(): number {
    do this.last = this.last === 0xffff_ffff ? 1 : this.last + 1
    while (this.#offers.has(this.last))
    return this.last
  }

  /** A place is free: it goes to the longest waiter, so that no later one takes it. */
  #leave(): void {
    for (const first of this.#waiting) {
      this.#waiting.delete(first)
      first.resolve()
      return
    }
    this.#free++
  }
}

type Bounded = TransmitOptions & { readonly timeout: number }
