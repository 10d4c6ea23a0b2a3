import { createHistogram, type RecordableHistogram } from 'node:perf_hooks'

/**
 * What a connection has done since it began, and what it is doing. Frames are messages, requests,
 * responses, offers and what ends a connection or a transfer; bytes are those of their payloads.
 */
export interface RingStatistics {
  /** frames of the peer */
  readonly framesReceived: number
  /** bytes of their payloads */
  readonly bytesReceived: number
  /** frames of this end, including those that wait for the end of the turn */
  readonly framesSent: number
  /** bytes of their payloads */
  readonly bytesSent: number
  /** notifications of the peer, of one or more frames */
  readonly notificationsReceived: number
  /** notifications of this end, of one or more frames */
  readonly notificationsSent: number
  /** credits of the peer, with its answers to pings */
  readonly creditsReceived: number
  /** credits of this end, with its answers to pings */
  readonly creditsSent: number
  /** pings of the peer */
  readonly pingsReceived: number
  /** posts to the device, of one or more work requests each */
  readonly doorbells: number
  /** work requests posted for sending and reading */
  readonly workRequests: number
  /** work requests that were sent inline */
  readonly inlineRequests: number
  /** work requests that are signaled */
  readonly signaledRequests: number
  /** RDMA READs of large messages */
  readonly reads: number
  /** times that sending found no room, no credit or no place in the send queue */
  readonly stalls: number
  /** share of the work requests that are inline, 0 … 1 */
  readonly inlineShare: number
  /** requests of this end that wait for their response */
  readonly requestsInFlight: number
  /** requests of the peer that are being answered */
  readonly requestsRunning: number
  /** bytes that they count for: their own, and 1536 each */
  readonly requestMemory: number
  /** messages that are not consumed yet */
  readonly messagesWaiting: number
  /** large messages in flight, in both directions */
  readonly transfersInFlight: number
  /** bytes of memory for large messages of the peer */
  readonly transferMemory: number
}

/** Nothing under way: what does not add up over time, and is over with its connection. */
const NOTHING_UNDER_WAY = {
  requestsInFlight: 0,
  requestsRunning: 0,
  requestMemory: 0,
  messagesWaiting: 0,
  transfersInFlight: 0,
  transferMemory: 0,
} as const satisfies Partial<RingStatistics>

/** Statistics of nothing. */
const NONE: RingStatistics = {
  framesReceived: 0,
  bytesReceived: 0,
  framesSent: 0,
  bytesSent: 0,
  notificationsReceived: 0,
  notificationsSent: 0,
  creditsReceived: 0,
  creditsSent: 0,
  pingsReceived: 0,
  doorbells: 0,
  workRequests: 0,
  inlineRequests: 0,
  signaledRequests: 0,
  reads: 0,
  stalls: 0,
  inlineShare: 0,
  ...NOTHING_UNDER_WAY,
}

/** What a poller has done since it began. */
export interface PollerStatistics {
  /** turns: polls of the completion queue and of other work */
  readonly turns: number
  /** turns that found nothing: spins */
  readonly emptyTurns: number
  /** times that the thread slept */
  readonly sleeps: number
  /** sleeps that this process ended, not a completion */
  readonly wakes: number
  /** work completions taken from the queue */
  readonly completions: number
  /** times that JavaScript was woken */
  readonly doorbells: number
  /** turns that found no place for a message, because JavaScript was slow to consume messages */
  readonly boardFull: number
  /** times that the guardian's thread took over while JavaScript computed (mode `guarded`) */
  readonly takeOvers: number
  /** connections that it serves now */
  readonly connections: number
}

/** The statistics that native code counts. */
export type NativeCounter =
  | 'framesReceived'
  | 'bytesReceived'
  | 'notificationsReceived'
  | 'notificationsSent'
  | 'creditsReceived'
  | 'creditsSent'
  | 'pingsReceived'
  | 'doorbells'
  | 'workRequests'
  | 'inlineRequests'
  | 'signaledRequests'
  | 'reads'
  | 'stalls'

/** Counters in the order of `names`, which are native code's, by their names here. */
export function named(names: readonly string[], values: Float64Array): Record<string, number> {
  return Object.fromEntries(
    names.map((name, at) => [
      name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()),
      values[at] as number,
    ]),
  )
}

/** A connection. */
export interface Observed {
  readonly closed: Promise<unknown>
  statistics(): RingStatistics
  /** the latencies of its requests, since the first call */
  measure(): RecordableHistogram
}

export function sum(all: Iterable<RingStatistics>): RingStatistics {
  const total: Record<string, number> = { ...NONE }
  for (const one of all)
    for (const [name, value] of Object.entries(one)) total[name] = (total[name] as number) + value
  const { inlineRequests = 0, workRequests = 0 } = total
  return { ...total, inlineShare: share(inlineRequests, workRequests) } as unknown as RingStatistics
}

export function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole
}

/**
 * A histogram of nanoseconds, from 1 to an hour, exact to 1 %. It takes some 40 KiB, so it is only made on demand.
 */
export function latencyHistogram(): RecordableHistogram {
  return createHistogram({ lowest: 1, highest: 3_600e9, figures: 2 })
}

/**
 * Statistics of connections that come and go. The work of ended connections still counts, so that the sums of
 * work done never fall; their unfinished work does not.
 */
export class Totals {
  readonly #live = new Set<Observed>()
  readonly #known = new WeakSet<Observed>()
  #ended = NONE
  /** of requests of connections that have ended; undefined until it is asked for */
  #latency: RecordableHistogram | undefined

  /** Counts it from now on; once, however often it is added. */
  add(connection: Observed): void {
    if (this.#known.has(connection)) return
    this.#known.add(connection)
    this.#live.add(connection)
    if (this.#latency !== undefined) connection.measure()
    void connection.closed.then(() => {
      this.#live.delete(connection)
      this.#ended = sum([this.#ended, { ...connection.statistics(), ...NOTHING_UNDER_WAY }])
      this.#latency?.add(connection.measure())
    })
  }

  /** Measures the latency of requests from now on. */
  measure(): void {
    this.#latency ??= latencyHistogram()
    for (const one of this.#live) one.measure()
  }

  get connections(): number {
    return this.#live.size
  }

  statistics(): RingStatistics {
    return sum([this.#ended, ...[...this.#live].map((one) => one.statistics())])
  }

  /** Adds the latencies of all its requests since {@link measure}. */
  addLatency(to: RecordableHistogram): void {
    if (this.#latency === undefined) return
    to.add(this.#latency)
    for (const one of this.#live) to.add(one.measure())
  }
}
