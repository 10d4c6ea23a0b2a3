import {
  ControlSocket,
  checkFilePath,
  describeFileError,
  formatSize,
  MetricsEndpoint,
  oneLineMessage,
} from '@rdmakit/operator-kit'
import type { Logger } from 'pino'
import { ConfigurationError } from '../protocol/configuration-error.js'
import { Refusal } from '../protocol/refusal.js'
import { AuditLog } from '../server/audit-log.js'
import type { Holding } from '../server/memory/lending.js'
import type { SwapServer } from '../server/server.js'
import { parseHolding } from './reclaim.js'
import type { ServerStatus } from './status.js'

/** slabs are of whole MiB */
const MIB = 2 ** 20

export interface OperatorInterfaceOptions {
  /** where to serve metrics */
  readonly metrics: string | undefined
  /** for the status; may grow */
  readonly listeners: readonly string[]
}

/** @throws ConfigurationError */
export function auditLog(log: Logger, path: string | undefined): AuditLog {
  if (path !== undefined) checkFilePath(path, '--audit-log')
  try {
    return new AuditLog(log, path)
  } catch (failure) {
    throw new ConfigurationError(`--audit-log ${path}: ${describeFileError(failure)}`)
  }
}

/** More than is lent cannot be given back. @throws Refusal */
function withinLent({ lending, store }: SwapServer, holding: Holding): Holding {
  const { bytes } = holding
  if (
    Number.isFinite(bytes) &&
    Math.ceil(bytes / store.slabSize) * store.slabSize > lending.lent &&
    bytes > 0
  )
    throw new Refusal(
      'ENOSPC',
      `<size> ${formatSize(bytes)} is more than swap-server ${process.pid} has lent; ${lending.lent === 0 ? 'it has lent nothing; "all" keeps it so' : `ask for ${lending.lent / MIB}M at most`}`,
    )
  return holding
}

/** @throws UsageError, EADDRINUSE */
async function serveMetrics(server: SwapServer, address: string): Promise<MetricsEndpoint> {
  const { collectServerMetrics } = await import('./server-metrics.js')
  return await MetricsEndpoint.open(collectServerMetrics(server), address)
}

/** An operator's access to a running server: its control socket, its metrics, SIGHUP. */
export class OperatorInterface {
  readonly metricsUri: string | undefined
  readonly #ends: readonly ({ close(): void } | undefined)[]
  readonly #hangup: () => void

  private constructor(
    hangup: () => void,
    control: ControlSocket | undefined,
    metrics: MetricsEndpoint | undefined,
  ) {
    this.metricsUri = metrics?.uri
    this.#ends = [control, metrics]
    this.#hangup = hangup
    process.on('SIGHUP', hangup)
  }

  /** @throws UsageError, EADDRINUSE: of the metrics' address */
  static async start(
    server: SwapServer,
    { metrics, listeners }: OperatorInterfaceOptions,
  ): Promise<OperatorInterface> {
    const { log } = server
    const endpoint = metrics === undefined ? undefined : await serveMetrics(server, metrics)
    const status = (): ServerStatus => {
      const impaired = server.impairment()
      return { pid: process.pid, listeners, ...server.query('operator'), ...(impaired && { impaired }) }
    }
    // Memory is lent without it too; what lacks is "swap-server status".
    const reclaim = (body: unknown) => server.lending.hold(withinLent(server, parseHolding(body)))
    const routes = { 'GET /status': status, 'POST /reclaim': reclaim }
    const control = await ControlSocket.open('swap-server', routes).catch((failure: Error) => {
      log.warn(
        `cannot open the control socket, so "status", "stop" and "reclaim" do not find this server: ${oneLineMessage(failure)}`,
      )
      return undefined
    })
    const hangup = () => {
      server.audit.reopen()
      try {
        server.reloadTenants()
        log.info('tenants reloaded')
      } catch (failure) {
        log.error({ err: failure }, 'cannot reload the tenants; they stay as they were')
      }
    }
    return new OperatorInterface(hangup, control, endpoint)
  }

  close(): void {
    process.off('SIGHUP', this.#hangup)
    for (const end of this.#ends) end?.close()
  }
}
