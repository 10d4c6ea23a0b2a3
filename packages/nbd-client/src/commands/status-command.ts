import {
  describeImpairment,
  EXIT,
  formatDuration,
  formatSize,
  printStatus,
  type StatusView,
  silentAsUnreachable,
} from '@rdmakit/operator-kit'
import {
  addHistograms,
  countOf,
  histogramSince,
  type NativeHistogram,
  percentile,
} from '@rdmakit/remote-volume/internal'
import { statusTable } from '@rdmakit/swap-server/internal'
import type { EngineStatistics } from '../engine/block-engine.js'
import { type Presence, presenceOf } from '../kernel/device-identity.js'
import { parseDevice } from '../kernel/device-name.js'
import { totals } from '../report/client-status.js'
import { type ClientStatus, runningClients } from '../report/control.js'

const PAGE = 4096

export interface ClientStatusOptions {
  readonly json: boolean
  /** from one look to the next; undefined: once */
  readonly seconds: number | undefined
}

/** Prints the running nbd-clients of this user. */
export function printClientStatus({ json, seconds }: ClientStatusOptions): Promise<void> {
  return printStatus({ seconds, json, ...CLIENTS })
}

/** The clients of this user. */
export const CLIENTS: StatusView<readonly ShownStatus[]> = {
  take: async (unreachable) => {
    const running = await runningClients((silent) => unreachable(silentAsUnreachable(silent)))
    return running.map(({ status }) => withDevice(status))
  },
  format: formatClients,
  nothing: 'no nbd-client is running',
  judge: exitStatusOfClients,
}

/** As the help of `status` says. */
export function exitStatusOfClients(clients: readonly ShownStatus[]): number {
  if (clients.length === 0) return EXIT.unavailable
  return clients.every(isWell) ? EXIT.ok : EXIT.degraded
}

function isWell({ impaired, slabs, servers, statistics, device = 'there' }: ShownStatus): boolean {
  const lacking = slabs.degraded + slabs.refilling + slabs.away + slabs.backup + slabs.lost
  return (
    impaired === undefined &&
    lacking === 0 &&
    servers.every(({ state }) => state === 'up') &&
    statistics.lostPages === 0 &&
    statistics.backup?.working !== false &&
    device === 'there'
  )
}

/** What is shown of a client: of attach also whether the kernel has its device, or another one by that name. */
export type ShownStatus = ClientStatus & { readonly device?: Presence }

/** @param devices as /sys/block */
export function withDevice(status: ClientStatus, devices?: string): ShownStatus {
  const { mode, target, identifier } = status
  if (mode !== 'attach' || identifier === undefined) return status
  try {
    return { ...status, device: presenceOf({ ...parseDevice(target), identifier }, devices) }
  } catch {
    // Of ublk only root may ask.
    return status
  }
}

/** An earlier look at the same clients, and how long ago it was. */
interface Earlier {
  readonly clients: readonly ShownStatus[]
  readonly seconds: number
}

/** Three tables: volumes; their requests and servers, since the start or, when they are watched, a second. */
function formatClients(
  clients: readonly ShownStatus[],
  before: readonly ShownStatus[] | undefined,
  seconds: number,
): string {
  const earlier = before === undefined ? undefined : { clients: before, seconds }
  const name = ({ target }: ClientStatus) => (clients.length > 1 ? `${target}: ` : '')
  const requests = clients.flatMap((client) =>
    (['read', 'write'] as const).map((kind) => requestsRow(client, kind, earlier)),
  )
  return [
    statusTable(clients, [
      ['TARGET', ({ target, device = 'there' }) => target + NOT_ITS[device]],
      ['PID', ({ pid }) => String(pid), 'right'],
      ['MODE', ({ swap, mode }) => (swap ? 'swap' : mode)],
      ['SIZE', ({ size }) => formatSize(size), 'right'],
      ['HOLDS', ({ statistics }) => formatSize(statistics.writtenPages * PAGE), 'right'],
      ['LOST', ({ statistics }) => formatSize(statistics.lostPages * PAGE), 'right'],
      ['ERRORS', ({ statistics }) => String(totals(statistics).errors), 'right'],
      ['IN FLIGHT', ({ statistics }) => String(totals(statistics).inFlight), 'right'],
      ['UP', ({ uptimeSeconds }) => formatDuration(uptimeSeconds * 1000), 'right'],
      ['BACKUP', ({ statistics }) => describeBackup(statistics)],
      ['LZ4', ({ statistics }) => describeCompression(statistics)],
      ['SLABS', slabsOf],
    ]),
    statusTable(requests, [
      ['REQUESTS', ({ client, kind }) => name(client) + kind],
      ['COUNT', ({ count }) => count, 'right'],
      ['DATA', ({ data }) => data, 'right'],
      ['MEDIAN', ({ latency }) => formatLatency(percentile(latency, 0.5)), 'right'],
      ['99%', ({ latency }) => formatLatency(percentile(latency, 0.99)), 'right'],
      ['99.9%', ({ latency }) => formatLatency(percentile(latency, 0.999)), 'right'],
    ]),
    statusTable(
      clients.flatMap((client) => serverRows(client, earlier)),
      [
        ['SERVER', ({ client, uri }) => name(client) + uri],
        ['SLABS', ({ slabs }) => String(slabs), 'right'],
        ['SPARES', ({ spares }) => String(spares), 'right'],
        ['READ', ({ read }) => read, 'right'],
        ['WRITTEN', ({ written }) => written, 'right'],
        ['STATE', ({ state, reason }) => (state === 'up' ? 'up' : `${state}: ${reason}`)],
      ],
    ),
    clients.map(warning).join(''),
  ]
    .filter((table) => table !== '')
    .join('\n')
}

function warning({ target, impaired }: ClientStatus): string {
  if (impaired === undefined) return ''
  return `${target}: ${describeImpairment(impaired)}; it still serves pages: detach the device, which brings them back, and attach it again\n`
}

const NOT_ITS = { there: '', gone: ' (gone)', another: " (another's)" } as const

/** `-`, `off`, `on, 512 MiB saved`, `1 of 2 lanes, 512 MiB saved`. */
function describeCompression(statistics: EngineStatistics): string {
  if (statistics.compress === 'none') return '-'
  const { compressing, writing, bytesSpared } = totals(statistics)
  const now =
    compressing === writing ? 'on' : compressing === 0 ? 'off' : `${compressing} of ${writing} lanes`
  return bytesSpared === 0 ? now : `${now}, ${formatSize(bytesSpared)} saved`
}

/** `16 mapped`, `13 mapped, 2 degraded, 1 refilling (43%)`, and what servers want back. */
function slabsOf({ slabs, thin, migration, statistics: { refill } }: ClientStatus): string {
  const states = { ...slabs, ...(thin && { unmapped: thin.unmapped, spare: thin.spares }) }
  const parts = Object.entries(states)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${count} ${state}`)
  const progress = refill?.active ? ` (${Math.floor((100 * refill.pagesDone) / refill.pages)}%)` : ''
  const moving = migration.waiting > 0 ? `; ${migration.waiting} being reclaimed` : ''
  return parts.join(', ') + progress + moving
}

function requestsRow(client: ClientStatus, kind: 'read' | 'write', earlier: Earlier | undefined) {
  const before = earlier?.clients.find(({ pid }) => pid === client.pid)
  const now = requestsOf(client, kind)
  const was = before && requestsOf(before, kind)
  return {
    client,
    kind,
    count: passed(countOf(now.latency), was && countOf(was.latency), earlier, String),
    data: passed(now.bytes, was?.bytes, earlier, formatSize),
    latency: was === undefined ? now.latency : histogramSince(now.latency, was.latency),
  }
}

function requestsOf(
  { statistics }: ClientStatus,
  kind: 'read' | 'write',
): { bytes: number; latency: NativeHistogram } {
  const { bytesRead, bytesWritten } = totals(statistics)
  return {
    bytes: kind === 'read' ? bytesRead : bytesWritten,
    latency: addHistograms(statistics.lanes.map((lane) => lane[`${kind}Latency`])),
  }
}

function serverRows(client: ClientStatus, earlier: Earlier | undefined) {
  const before = earlier?.clients.find(({ pid }) => pid === client.pid)
  return client.servers.map((server) => {
    // A server that has not been used yet is not in the statistics.
    const traffic = ({ statistics }: ClientStatus) =>
      statistics.servers.find((each) => each.server === server.index) ?? { bytesRead: 0, bytesWritten: 0 }
    const now = traffic(client)
    const was = before && traffic(before)
    return {
      client,
      ...server,
      read: passed(now.bytesRead, was?.bytesRead, earlier, formatSize),
      written: passed(now.bytesWritten, was?.bytesWritten, earlier, formatSize),
    }
  })
}

/** A counter: its value at the first look, then its growth per second; nothing for a client that was not there. */
function passed(
  now: number,
  was: number | undefined,
  earlier: Earlier | undefined,
  format: (value: number) => string,
): string {
  if (earlier === undefined) return format(now)
  if (was === undefined) return ''
  return `${format(Math.round((now - was) / earlier.seconds))}/s`
}

/** `13 µs`, `1.6 ms`, `2.1 s`; the native buckets are a quarter wide, so more digits would say nothing. */
function formatLatency(nanoseconds: number | undefined): string {
  if (nanoseconds === undefined) return ''
  const [unit, factor] = nanoseconds < 1e6 ? ['µs', 1e3] : nanoseconds < 1e9 ? ['ms', 1e6] : ['s', 1e9]
  const value = nanoseconds / factor
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`
}

/** For the status table: `-`, `complete`, `12 pages behind`, `failed`. */
function describeBackup({ backup }: EngineStatistics): string {
  if (backup === null) return '-'
  if (!backup.working) return 'failed'
  const behind = backup.stalePages + backup.queuedPages
  return behind === 0 ? 'complete' : `${behind} pages behind`
}
