import { type Distribution, MetricsEndpoint, scrapedMetrics } from '@rdmakit/operator-kit'
import { addHistograms, countOf, type NativeHistogram } from '@rdmakit/remote-volume/internal'
import { collectDefaultMetrics, Registry } from 'prom-client'
import type { EngineStatistics } from '../engine/block-engine.js'
import type { Volume } from '../engine/block-volume.js'
import { lastIncarnations, totals } from './client-status.js'
import { impairment } from './last-resort.js'

const PREFIX = 'rdmakit_nbd_'

/** Powers of two from 1 µs to 17 s, in nanoseconds: at the edges of the native buckets. */
const EDGES = Array.from({ length: 25 }, (_, i) => 2 ** (i + 10))
const NS_A_SECOND = 1e9

/** Of nanoseconds, as Prometheus has it: of seconds. */
const inSeconds = (histogram: NativeHistogram): Distribution => ({
  sum: histogram.sum / NS_A_SECOND,
  count: countOf(histogram),
  upTo: (seconds) =>
    histogram.buckets.reduce((sum, [, to, each]) => (to / NS_A_SECOND <= seconds ? sum + each : sum), 0),
})

/** Metrics of a volume, read from the native counters when they are scraped: they cost the page path nothing. */
export function collectVolumeMetrics(volume: Volume, registry = new Registry()): Registry {
  const statistics = oncePerScrape(() => volume.engine.statistics())
  const { gauge, counter, histogram } = scrapedMetrics(registry, PREFIX)
  const lanes = () => totals(statistics())
  const level = (name: string, help: string, read: () => number) =>
    gauge(name, help, [], () => [[{}, read()]])
  const total = (name: string, help: string, read: () => number) =>
    counter(name, help, [], () => [[{}, read()]])
  level('size_bytes', 'Bytes of the volume', () => volume.size)
  gauge('slabs', 'Slabs in each state', ['state'], () =>
    Object.entries(volume.slabs).map(([state, count]) => [{ state }, count]),
  )
  if (volume.thin !== undefined) {
    const { thin } = volume
    level(
      'unmapped_slabs',
      'Slabs without memory, because nothing was written to them',
      () => volume.unmapped,
    )
    level('spare_places', 'Places allocated in advance for first writes', () => thin.spares)
    total('given_back_slabs_total', 'Slabs whose memory was given back after a discard', () => thin.given)
  }
  total('control_failures_total', 'Uncaught failures of control code', () => impairment()?.failures ?? 0)
  gauge('server_up', '1 while the server is in use', ['server'], () =>
    lastIncarnations(volume).map(({ uri, failure }) => [{ server: uri }, failure === undefined ? 1 : 0]),
  )
  level('written_pages', 'Pages with data', () => statistics().writtenPages)
  level('lost_pages', 'Pages that have no copy left', () => statistics().lostPages)
  level('requests_in_flight', 'NBD requests now', () => lanes().inFlight)
  counter('requests_total', 'NBD requests answered with success', ['kind'], () => [
    [{ kind: 'read' }, lanes().reads],
    [{ kind: 'write' }, lanes().writes],
  ])
  counter('bytes_total', 'Bytes of them', ['kind'], () => [
    [{ kind: 'read' }, lanes().bytesRead],
    [{ kind: 'write' }, lanes().bytesWritten],
  ])
  total('errors_total', 'NBD requests answered with an error', () => lanes().errors)
  total(
    'read_ahead_bytes_total',
    'Bytes read ahead of clients that read sequentially',
    () => lanes().pagesReadAhead * 4096,
  )
  total(
    'read_ahead_used_bytes_total',
    'Bytes read ahead that clients then read',
    () => lanes().bytesFromReadAhead,
  )
  total('wrong_pages_total', 'Copies of pages that did not match their checksum', () => lanes().pagesWrong)
  total('repaired_pages_total', 'Wrong copies rewritten from another replica', () => lanes().pagesRepaired)
  if (statistics().compress !== 'none') {
    level('compressing_lanes', 'Writing lanes that compress now', () => lanes().compressing)
    total('compressed_pages_total', 'Pages that were written compressed', () => lanes().pagesCompressed)
    total(
      'spared_bytes_total',
      'Bytes saved on the wire by compression, both ways',
      () => lanes().bytesSpared,
    )
  }
  level(
    'moving_slabs',
    'Slabs that servers reclaim and that have not moved yet',
    () => volume.migration.waiting,
  )
  total('refilled_bytes_total', 'Bytes copied to new replicas', () => statistics().refill?.bytesCopied ?? 0)
  const backup = () => statistics().backup
  if (backup() !== null) {
    level('backup_up', '1 while the local backup works', () => (backup()?.working ? 1 : 0))
    level(
      'backup_pages_behind',
      'Written pages that the backup does not have yet',
      () => (backup()?.stalePages ?? 0) + (backup()?.queuedPages ?? 0),
    )
    total(
      'backup_missed_pages_total',
      'Written pages for which its queue had no room',
      () => backup()?.missedPages ?? 0,
    )
    counter('backup_bytes_total', 'Bytes written to the backup and read from it', ['kind'], () => [
      [{ kind: 'read' }, backup()?.bytesRead ?? 0],
      [{ kind: 'write' }, backup()?.bytesWritten ?? 0],
    ])
  }
  histogram(
    'request_duration_seconds',
    'From the arrival of an NBD request to its queued reply',
    'kind',
    EDGES.map((edge) => edge / NS_A_SECOND),
    () => ({
      read: inSeconds(addHistograms(statistics().lanes.map(({ readLatency }) => readLatency))),
      write: inSeconds(addHistograms(statistics().lanes.map(({ writeLatency }) => writeLatency))),
    }),
  )
  collectDefaultMetrics({ register: registry, prefix: PREFIX })
  return registry
}

/** An endpoint that is there before the volume whose metrics it will serve. */
export class EarlyMetrics {
  readonly #registry: Registry
  readonly #endpoint: MetricsEndpoint

  private constructor(registry: Registry, endpoint: MetricsEndpoint) {
    this.#registry = registry
    this.#endpoint = endpoint
  }

  /** @throws UsageError, EADDRINUSE */
  static async open(address: string): Promise<EarlyMetrics> {
    const registry = new Registry()
    return new EarlyMetrics(registry, await MetricsEndpoint.open(registry, address))
  }

  get uri(): string {
    return this.#endpoint.uri
  }

  /** The volume's metrics are there from now on. */
  measure(volume: Volume): void {
    collectVolumeMetrics(volume, this.#registry)
  }

  close(): void {
    this.#endpoint.close()
  }
}

/** @throws UsageError, EADDRINUSE */
export async function serveMetrics(volume: Volume, address: string): Promise<MetricsEndpoint> {
  const endpoint = await MetricsEndpoint.open(collectVolumeMetrics(volume), address)
  process.stdout.write(`metrics ${endpoint.uri}\n`)
  return endpoint
}

/** All metrics of one scrape are of one moment. */
function oncePerScrape(take: () => EngineStatistics): () => EngineStatistics {
  let taken: EngineStatistics | undefined
  return () => {
    if (taken === undefined) {
      taken = take()
      setImmediate(() => {
        taken = undefined
      })
    }
    return taken
  }
}
