import type { Histogram } from 'node:perf_hooks'
import { UsageError } from '@rdmakit/verbs'
import { Counter, Gauge, type Registry, Summary, type SummaryConfiguration } from 'prom-client'
import { queueMicrotask } from './base/clock.js'
import type { RingClient } from './client/client.js'
import type { RingConnection } from './connection/connection.js'
import {
  latencyHistogram,
  type PollerStatistics,
  type RingStatistics,
  sum,
  Totals,
} from './connection/statistics.js'
import type { Poller } from './polling/poller.js'
import type { RingServer } from './server/server.js'

/** What {@link collectRingMetrics} reports on, all together. At least one of them. */
export interface RingMetricsSources {
  /** connections, or a function that gives those of the moment */
  readonly connections?: (Iterable<RingConnection> | (() => Iterable<RingConnection>)) | undefined
  /** all its connections, from now on */
  readonly server?: RingServer | undefined
  /** its connections, one after another, from now on */
  readonly client?: RingClient | undefined
  /** told apart by a label `poller`, their place in the list */
  readonly pollers?: readonly Poller[] | undefined
}

type Counted = readonly [name: string, help: string, statistic: keyof RingStatistics]

/** In Prometheus's words: counters end in _total, units are bytes and seconds. */
const COUNTERS: readonly Counted[] = [
  ['received_frames_total', 'Messages, requests, responses and control frames received', 'framesReceived'],
  ['received_bytes_total', 'Bytes of the payloads of received frames', 'bytesReceived'],
  ['sent_frames_total', 'Messages, requests, responses and control frames sent', 'framesSent'],
  ['sent_bytes_total', 'Bytes of the payloads of sent frames', 'bytesSent'],
  ['received_notifications_total', 'Notifications received, of one or more frames', 'notificationsReceived'],
  ['sent_notifications_total', 'Notifications sent, of one or more frames', 'notificationsSent'],
  ['received_credits_total', 'Credits and answers to pings received', 'creditsReceived'],
  ['sent_credits_total', 'Credits and answers to pings sent', 'creditsSent'],
  ['received_pings_total', 'Pings received', 'pingsReceived'],
  ['doorbells_total', 'Posts to the device, of one or more work requests', 'doorbells'],
  ['work_requests_total', 'Work requests posted for sending', 'workRequests'],
  ['inline_work_requests_total', 'Work requests sent inline', 'inlineRequests'],
  ['signaled_work_requests_total', 'Work requests that ask for a completion', 'signaledRequests'],
  ['reads_total', 'RDMA READs of large messages', 'reads'],
  ['stalls_total', 'Times that sending found no room, credit or place in the send queue', 'stalls'],
]

const GAUGES: readonly Counted[] = [
  ['requests_in_flight', 'Requests that wait for their response', 'requestsInFlight'],
  ['requests_running', 'Requests of peers that are being answered', 'requestsRunning'],
  ['request_memory_bytes', 'Memory for requests of peers that are being answered', 'requestMemory'],
  ['messages_waiting', 'Messages that are not consumed yet', 'messagesWaiting'],
  ['transfers_in_flight', 'Large messages under way, both ways', 'transfersInFlight'],
  ['transfer_memory_bytes', 'Memory for large messages of peers', 'transferMemory'],
]

const POLLER_COUNTERS: readonly (readonly [string, string, keyof PollerStatistics])[] = [
  ['poller_turns_total', 'Polls of the completion queue', 'turns'],
  ['poller_empty_turns_total', 'Polls that found nothing: spins', 'emptyTurns'],
  ['poller_sleeps_total', 'Times that the polling thread slept', 'sleeps'],
  ['poller_wakes_total', 'Sleeps ended by this process, not by a completion', 'wakes'],
  ['poller_completions_total', 'Completions taken', 'completions'],
  ['poller_doorbells_total', 'Times that JavaScript was woken', 'doorbells'],
  ['poller_board_full_total', 'Polls that found no place for a message', 'boardFull'],
  ['poller_take_overs_total', 'Times that the guardian took over while JavaScript computed', 'takeOvers'],
]

const QUANTILES = [0.5, 0.9, 0.99, 0.999]
const PREFIX = 'rdmakit_ring_'

/**
 * Registers metrics of ring connections with a Prometheus registry, once for each registry: counters and
 * gauges `rdmakit_ring_…`, summed over all connections, and the latency of requests as the summary
 * `rdmakit_ring_request_latency_seconds`. All is read when the registry is scraped and not before; of what
 * has ended between two scrapes nothing is lost. The latency of a connection's requests is measured from
 * this call on, or from when the connection is first seen.
 * @returns what takes them off the registry again
 * @throws UsageError without a source; Error when the registry has such metrics already
 */
export function collectRingMetrics(registry: Registry, sources: RingMetricsSources): () => void {
  const { connections, server, client, pollers } = sources
  if (!(connections ?? server ?? client ?? pollers))
    throw new UsageError('nothing to report on: name connections, a server, a client or pollers')
  const scrape = new Scrape(sources)
  const names: string[] = []
  const metric = (name: string, help: string) => {
    names.push(PREFIX + name)
    return { name: PREFIX + name, help, registers: [registry] }
  }
  const scraped =
    (Kind: typeof Counter<string> | typeof Gauge<string>) =>
    (name: string, help: string, value: () => number) =>
      new Kind({
        ...metric(name, help),
        collect() {
          this.reset()
          this.inc(value())
        },
      })
  const [counter, gauge] = [scraped(Counter), scraped(Gauge)]
  if (connections ?? server ?? client) {
    for (const [name, help, statistic] of COUNTERS) counter(name, help, () => scrape.statistics[statistic])
    for (const [name, help, statistic] of GAUGES) gauge(name, help, () => scrape.statistics[statistic])
    gauge('connections', 'Connections that are open or draining', () => scrape.connections)
    new Latency(metric('request_latency_seconds', 'From a request to its response'), () => scrape.latency)
  }
  if (server !== undefined) {
    counter('server_accepted_total', 'Connections taken', () => server.counts.accepted)
    counter('server_refused_total', 'Connection requests refused or failed', () => server.counts.refused)
    counter('server_stale_total', 'Connection requests refused for an old epoch', () => server.counts.stale)
  }
  if (pollers !== undefined)
    for (const [name, help, statistic] of POLLER_COUNTERS)
      new Counter({
        ...metric(name, help),
        labelNames: ['poller'],
        collect() {
          this.reset()
          for (const [at, one] of pollers.entries()) this.inc({ poller: at }, one.statistics()[statistic])
        },
      })
  return () => {
    for (const name of names) registry.removeSingleMetric(name)
  }
}

/** The values from which the metrics of one scrape are read, once for all of them. */
class Scrape {
  readonly #sources: RingMetricsSources
  readonly #own = new Totals()
  readonly #totals: readonly Totals[]
  #statistics: RingStatistics | undefined

  constructor(sources: RingMetricsSources) {
    const { server, client } = sources
    this.#sources = sources
    this.#totals = [this.#own, server?.totals, client?.totals].filter((one) => one !== undefined)
    for (const one of this.#totals) one.measure()
    this.#look()
  }

  /** All metrics of a scrape are collected in one turn. */
  get statistics(): RingStatistics {
    if (this.#statistics === undefined) {
      this.#look()
      this.#statistics = sum(this.#totals.map((one) => one.statistics()))
      queueMicrotask(() => {
        this.#statistics = undefined
      })
    }
    return this.#statistics
  }

  get connections(): number {
    return this.#totals.reduce((count, one) => count + one.connections, 0)
  }

  get latency(): Histogram {
    const all = latencyHistogram()
    for (const one of this.#totals) one.addLatency(all)
    return all
  }

  #look(): void {
    const { connections = [] } = this.#sources
    for (const one of typeof connections === 'function' ? connections() : connections) this.#own.add(one)
  }
}

/** A summary whose quantiles come from a histogram of nanoseconds. */
class Latency extends Summary {
  readonly #histogram: () => Histogram

  constructor(configuration: SummaryConfiguration<string>, histogram: () => Histogram) {
    super(configuration)
    this.#histogram = histogram
  }

  override async get() {
    const metric = await super.get()
    const { name } = metric
    const histogram = this.#histogram()
    const count = Number(histogram.count)
    const seconds = (nanoseconds: number) => (count === 0 ? 0 : nanoseconds / 1e9)
    const values = QUANTILES.map((quantile) => ({
      metricName: name,
      labels: { quantile },
      value: seconds(histogram.percentile(quantile * 100)),
    }))
    const total = { metricName: `${name}_sum`, labels: {}, value: seconds(histogram.mean * count) }
    return {
      ...metric,
      values: [...values, total, { metricName: `${name}_count`, labels: {}, value: count }],
    }
  }
}
