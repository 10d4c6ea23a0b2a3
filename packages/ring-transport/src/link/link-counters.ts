import { type NativeCounter, named, share } from '../connection/statistics.js'
import { type NativePoller, native } from '../native.js'

/** a connection's counters, one after another */
const COUNTS = new Float64Array(native.connectionCounters.length)
const counter = (name: string) => native.connectionCounters.indexOf(name)
const HEARD = ['notifications_received', 'credits_received', 'pings_received'].map(counter)
const ACTIVITY = ['frames_received', 'notifications_sent'].map(counter)

/** The native counters of one connection. */
export class LinkCounters {
  readonly #native: NativePoller
  readonly #connection: number
  #last: Float64Array | undefined

  /** @param connection its number at the poller */
  constructor(poller: NativePoller, connection: number) {
    this.#native = poller
    this.#connection = connection
  }

  /** Notifications, credits, pings and pongs of the peer so far. */
  heard(): number {
    return this.#sum(HEARD)
  }

  /** Frames received and batches sent so far. */
  activity(): number {
    return this.#sum(ACTIVITY)
  }

  /** All counters by their names; after {@link keep} as they were then. */
  all(): Record<NativeCounter | 'inlineShare', number> {
    if (this.#last === undefined) this.#native.counters(this.#connection, COUNTS)
    const all = named(native.connectionCounters, this.#last ?? COUNTS) as Record<NativeCounter, number>
    return { ...all, inlineShare: share(all.inlineRequests, all.workRequests) }
  }

  /** The connection is about to be released: its counters keep their values. */
  keep(): void {
    this.#last = new Float64Array(COUNTS.length)
    this.#native.counters(this.#connection, this.#last)
  }

  #sum(counters: readonly number[]): number {
    this.#native.counters(this.#connection, COUNTS)
    return counters.reduce((sum, at) => sum + (COUNTS[at] as number), 0)
  }
}
