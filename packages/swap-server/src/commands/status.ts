import {
  describeImpairment,
  EXIT,
  formatDuration,
  formatSize,
  formatTable,
  type Impairment,
  printStatus,
  reportSilentAsUnavailable,
  rightAligned,
  runningPrograms,
  type StatusView,
} from '@rdmakit/operator-kit'
import type { SessionOptions } from '../client/session-options.js'
import { SwapServerSession } from '../client/swap-server-session.js'
import { explainUnreachable } from '../client/unreachable.js'
import type { control } from '../protocol/messages.js'

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

/** Prints the running servers of this machine, or remote ones. @throws what opening a session throws */
export function printServerStatus(options: StatusOptions): Promise<void> {
  return printStatus({
    seconds: options.watch,
    json: options.json,
    ...SERVERS,
    ...(options.uris.length === 0 ? {} : { take: () => remoteServers(options) }),
  })
}

/** The servers of this machine. */
export const SERVERS: StatusView<readonly ServerStatus[]> = {
  take: localServers,
  format: formatServers,
  judge: exitStatusOfServers,
}

/** As the help of `status` says. */
function exitStatusOfServers(servers: readonly ServerStatus[]): number {
  if (servers.length === 0) return EXIT.unavailable
  return servers.some(({ impaired }) => impaired !== undefined) ? EXIT.degraded : EXIT.ok
}

async function localServers(): Promise<ServerStatus[]> {
  return (await runningPrograms('swap-server', reportSilentAsUnavailable)).map(
    ({ status }) => status as ServerStatus,
  )
}

function remoteServers({ uris, json: _json, watch: _watch, ...who }: StatusOptions): Promise<ServerStatus[]> {
  return Promise.all(
    uris.map(async (uri) => {
      const session = await SwapServerSession.open([uri], {
        client: `status, pid ${process.pid}`,
        largeAnswers: true,
        ...who,
      }).catch((failure) => {
        throw explainUnreachable(uri, failure)
      })
      try {
        return { ...(await session.query()), listeners: [uri] }
      } finally {
        await session.close()
      }
    }),
  )
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
  if (servers.length === 0) return 'no swap-server is running\n'
  const name = ({ pid, listeners }: ServerStatus) => (servers.length > 1 ? `${pid ?? listeners[0]}: ` : '')
  return [
    formatTable(
      [
        'SERVER',
        rightAligned('PID'),
        rightAligned('LENDS'),
        rightAligned('FREE'),
        rightAligned('SESSIONS'),
        rightAligned('CPU'),
        rightAligned('UP'),
        'HOST',
      ],
      servers.map((server) => [
        server.listeners.join(', '),
        String(server.pid ?? ''),
        size(Number(server.slabSize ?? 0) * Number(server.totalSlabs ?? 0)),
        size(Number(server.slabSize ?? 0) * Number(server.freeSlabs ?? 0)),
        String(server.sessions ?? 0),
        cpuOf(
          server,
          before?.find(({ epoch }) => epoch === server.epoch),
          seconds,
        ),
        formatDuration(Number(server.uptimeMs ?? 0)),
        pressureOf(server),
      ]),
    ),
    formatTable(
      [
        'TENANT',
        'CLASS',
        rightAligned('WEIGHT'),
        rightAligned('HOLDS'),
        rightAligned('SESSIONS'),
        rightAligned('TRAFFIC'),
        rightAligned('OPERATIONS'),
      ],
      servers.flatMap((server) =>
        (server.tenants ?? []).map((tenant) => [
          name(server) + (tenant.name ?? ''),
          tenant.opportunistic ? 'opportunistic' : 'production',
          String(tenant.weight ?? ''),
          size(Number(tenant.slabs ?? 0) * Number(server.slabSize ?? 0)) +
            limited(tenant.quotaSlabs, size(Number(tenant.quotaSlabs) * Number(server.slabSize ?? 0))),
          String(tenant.sessions ?? 0),
          rate(tenant.usage?.bytesPerSecond) +
            limited(tenant.limits?.bytesPerSecond, rate(tenant.limits?.bytesPerSecond)),
          `${tenant.usage?.operationsPerSecond ?? 0}/s${limited(tenant.limits?.operationsPerSecond, `${tenant.limits?.operationsPerSecond}/s`)}`,
        ]),
      ),
    ),
    formatTable(
      ['CLIENT', 'TENANT', 'FROM', rightAligned('HOLDS'), rightAligned('DATA'), rightAligned('FOR'), 'STATE'],
      servers.flatMap((server) =>
        (server.sessionList ?? []).map((session) => [
          name(server) + (session.client ?? ''),
          session.tenant ?? '',
          session.peer ?? '',
          size(Number(session.slabs ?? 0) * Number(server.slabSize ?? 0)),
          String(session.dataConnections ?? 0),
          formatDuration(Number(session.ageMs ?? 0)),
          session.lingering ? 'lingering' : 'connected',
        ]),
      ),
    ),
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
