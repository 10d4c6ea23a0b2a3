import {
  describeImpairment,
  EXIT,
  exitStatusOf,
  formatDuration,
  formatSize,
  type Impairment,
  nameOption,
  oneLineMessage,
  printStatus,
  runningPrograms,
  type StatusView,
  silentAsUnreachable,
  type Unreachable,
} from '@rdmakit/operator-kit'
import { SwapServerError } from '../client/server-replies.js'
import type { SessionOptions } from '../client/session-options.js'
import { SwapServerSession } from '../client/swap-server-session.js'
import { explainUnreachable } from '../client/unreachable.js'
import { ConfigurationError } from '../protocol/configuration-error.js'
import type { control } from '../protocol/messages.js'
import { meaningOfRefusal } from '../protocol/refusal.js'
import { statusTable } from './status-table.js'

/** What a swap-server tells of itself. */
export interface ServerStatus extends control.QueryReply.$Properties {
  /** its addresses; of a remote one, the one that was asked */
  readonly listeners: readonly string[]
  /** of a server of this machine */
  readonly pid?: number
  /** of a server of this machine: its control code has failed, and it opens no new sessions */
  readonly impaired?: Impairment
}

export interface StatusOptions extends Pick<SessionOptions, 'tenant' | 'key'> {
  /** none: the servers of this machine */
  readonly uris: readonly string[]
  readonly json: boolean
  readonly watch: number | undefined
}

/** Prints the running servers of this machine, or remote ones. */
export function printServerStatus(options: StatusOptions): Promise<void> {
  return printStatus({
    seconds: options.watch,
    json: options.json,
    ...SERVERS,
    ...(options.uris.length === 0
      ? {}
      : { take: (unreachable: Report) => remoteServers(options, unreachable) }),
  })
}

type Report = (it: Unreachable) => void

/** The servers of this machine. */
export const SERVERS: StatusView<readonly ServerStatus[]> = {
  take: localServers,
  format: formatServers,
  nothing: 'no swap-server is running',
  judge: exitStatusOfServers,
}

/** As the help of `status` says. */
function exitStatusOfServers(servers: readonly ServerStatus[]): number {
  if (servers.length === 0) return EXIT.unavailable
  return servers.some(({ impaired }) => impaired !== undefined) ? EXIT.degraded : EXIT.ok
}

async function localServers(unreachable: Report): Promise<ServerStatus[]> {
  const running = await runningPrograms('swap-server', (silent) => unreachable(silentAsUnreachable(silent)))
  return running.map(({ status }) => status as ServerStatus)
}

/** @throws what the only server that is asked refuses, which no later look mends; any other failure is reported */
async function remoteServers(options: StatusOptions, unreachable: Report): Promise<ServerStatus[]> {
  const servers = await Promise.all(
    options.uris.map((uri) =>
      remoteServer(uri, options).catch((failure: unknown) => {
        if (options.uris.length === 1 && isRefusal(failure)) throw nameOption(uri, failure)
        const message = `swap-server: ${oneLineMessage(nameOption(uri, failure))}`
        unreachable({ message, exitStatus: exitStatusOf(failure) })
      }),
    ),
  )
  return servers.filter((server) => server !== undefined)
}

function isRefusal(failure: unknown): boolean {
  if (failure instanceof ConfigurationError) return true
  return failure instanceof SwapServerError && meaningOfRefusal(failure.code) === 'forbidden'
}

/** @throws what opening a session throws */
async function remoteServer(uri: string, { tenant, key }: StatusOptions): Promise<ServerStatus> {
  const session = await SwapServerSession.open([uri], {
    client: `status, pid ${process.pid}`,
    largeAnswers: true,
    ...(tenant === undefined ? {} : { tenant }),
    ...(key === undefined ? {} : { key }),
  }).catch((failure) => {
    throw explainUnreachable(uri, failure)
  })
  try {
    return { ...(await session.query()), listeners: [uri] }
  } finally {
    await session.close()
  }
}

const size = (bytes: number | null | undefined) => formatSize(Number(bytes ?? 0))
const rate = (bytes: number | null | undefined) => `${size(bytes)}/s`
const limited = (value: number | null | undefined, text: string) => (value ? ` of ${text}` : '')

/** Three tables: servers, tenants, sessions. */
function formatServers(
  servers: readonly ServerStatus[],
  before: readonly ServerStatus[] | undefined,
  seconds: number,
): string {
  const name = ({ pid, listeners }: ServerStatus) => (servers.length > 1 ? `${pid ?? listeners[0]}: ` : '')
  const earlier = (server: ServerStatus) => before?.find(({ epoch }) => epoch === server.epoch)
  const ofSlabs = (count: number | null | undefined, server: ServerStatus) =>
    size(Number(count ?? 0) * Number(server.slabSize ?? 0))
  const tenants = servers.flatMap((server) => (server.tenants ?? []).map((tenant) => ({ server, ...tenant })))
  const sessions = servers.flatMap((server) =>
    (server.sessionList ?? []).map((session) => ({ server, ...session })),
  )
  return [
    statusTable(servers, [
      ['SERVER', ({ listeners }) => listeners.join(', ')],
      ['PID', ({ pid }) => String(pid ?? ''), 'right'],
      ['LENDS', (server) => ofSlabs(server.totalSlabs, server), 'right'],
      ['FREE', (server) => ofSlabs(server.freeSlabs, server), 'right'],
      ['SESSIONS', ({ sessions }) => String(sessions ?? 0), 'right'],
      ['CPU', (server) => cpuOf(server, earlier(server), seconds), 'right'],
      ['UP', ({ uptimeMs }) => formatDuration(Number(uptimeMs ?? 0)), 'right'],
      ['HOST', pressureOf],
    ]),
    statusTable(tenants, [
      ['TENANT', (tenant) => name(tenant.server) + (tenant.name ?? '')],
      ['CLASS', ({ opportunistic }) => (opportunistic ? 'opportunistic' : 'production')],
      ['WEIGHT', ({ weight }) => String(weight ?? ''), 'right'],
      [
        'HOLDS',
        ({ server, slabs, quotaSlabs }) =>
          ofSlabs(slabs, server) + limited(quotaSlabs, ofSlabs(quotaSlabs, server)),
        'right',
      ],
      ['SESSIONS', ({ sessions }) => String(sessions ?? 0), 'right'],
      [
        'TRAFFIC',
        ({ usage, limits }) =>
          rate(usage?.bytesPerSecond) + limited(limits?.bytesPerSecond, rate(limits?.bytesPerSecond)),
        'right',
      ],
      [
        'OPERATIONS',
        ({ usage, limits }) =>
          `${usage?.operationsPerSecond ?? 0}/s${limited(limits?.operationsPerSecond, `${limits?.operationsPerSecond}/s`)}`,
        'right',
      ],
    ]),
    statusTable(sessions, [
      ['CLIENT', ({ server, client }) => name(server) + (client ?? '')],
      ['TENANT', ({ tenant }) => tenant ?? ''],
      ['FROM', ({ peer }) => peer ?? ''],
      ['HOLDS', ({ server, slabs }) => ofSlabs(slabs, server), 'right'],
      ['DATA', ({ dataConnections }) => String(dataConnections ?? 0), 'right'],
      ['FOR', ({ ageMs }) => formatDuration(Number(ageMs ?? 0)), 'right'],
      ['STATE', ({ lingering }) => (lingering ? 'lingering' : 'connected')],
    ]),
    servers.map(warning).join(''),
  ]
    .filter((table) => table !== '')
    .join('\n')
}

function warning({ pid, impaired }: ServerStatus): string {
  if (impaired === undefined) return ''
  return `process ${pid}: ${describeImpairment(impaired)}; it opens no new sessions: end it when its clients have moved (swap-server stop)\n`
}

/** The share of one core since the last look, or since the start. */
function cpuOf(now: ServerStatus, before: ServerStatus | undefined, seconds: number): string {
  const busy = (status: ServerStatus | undefined) =>
    Number(status?.userCpuUs ?? 0) + Number(status?.systemCpuUs ?? 0)
  const microseconds = before === undefined ? Number(now.uptimeMs ?? 0) * 1000 : seconds * 1e6
  if (microseconds === 0) return ''
  return `${((100 * (busy(now) - busy(before))) / microseconds).toFixed(1)}%`
}

function pressureOf({ pressure }: ServerStatus): string {
  if (!pressure?.availableBytes) return ''
  const { availableBytes, headroomBytes, someAvg10, reclaimingSlabs } = pressure
  return [
    `${size(availableBytes)} available`,
    ...(headroomBytes ? [`${size(headroomBytes)} headroom`] : []),
    ...(someAvg10 ? [`pressure ${someAvg10.toFixed(1)}%`] : []),
    ...(reclaimingSlabs ? [`${reclaimingSlabs} slabs being reclaimed`] : []),
  ].join(', ')
}
