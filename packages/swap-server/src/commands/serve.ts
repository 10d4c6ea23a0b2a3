import {
  checkRuntimeDirectory,
  checkSocketPath,
  disableIdleGc,
  EXIT,
  ExitError,
  formatSize,
  handleSignals,
  LastResort,
  LossyLines,
  makeStdioNonBlocking,
  nameOption,
  oneLineMessage,
  parseAddress,
  parseSize,
  redirectWarnings,
} from '@rdmakit/operator-kit'
import { parseUri, UsageError } from '@rdmakit/verbs'
import { type Logger, pino } from 'pino'
import { parseHeadroom } from '../server/memory/host-headroom.js'
import { HostMemorySource } from '../server/memory/host-memory.js'
import { SwapServer } from '../server/server.js'
import { Tenants } from '../server/tenants/tenants.js'
import { auditLog, OperatorInterface } from './operator-interface.js'
import { notifyReady, notifyStatus, notifyStopping } from './service-manager.js'
import { endServer } from './shutdown.js'

/** The options of `serve`, as commander gives them. */
export interface ServeOptions {
  listen: string[]
  memory: string
  overcommit: boolean
  slabSize: string
  sessionTimeout: number
  headroom: string
  bandwidth: string
  tenants?: string | undefined
  auditLog?: string | undefined
  metrics?: string | undefined
  maxLinger: number
  drain: number
  logLevel: string
  json: boolean
}

/** Writes this program's log, for which heartbeats and sessions must not wait. */
function logTo(level: string): Logger {
  const about = { pid: process.pid, name: 'swap-server' }
  const lost = (count: number) => {
    const msg = `${count} lines of the log were lost: they were not read in time`
    return `${JSON.stringify({ level: pino.levels.values.warn, time: Date.now(), ...about, lost: count, msg })}\n`
  }
  return pino({ name: about.name, level }, new LossyLines(() => process.stderr, lost))
}

/** Lends memory until a signal ends it. @throws an error that names the wrong option, or address */
export async function serve(options: ServeOptions): Promise<void> {
  const patience = 1000 * options.drain
  const memory = memoryOf(options)
  for (const uri of options.listen) {
    const { provider, host } = parseUri(uri)
    if (provider === 'shm') checkSocketPath(host, `--listen ${uri}:`)
  }
  if (options.metrics !== undefined) parseAddress(options.metrics, '--metrics')
  makeStdioNonBlocking()
  const log = logTo(options.logLevel)
  redirectWarnings((warning) => log.warn({ err: warning }, warning.message))
  const lastResort = new LastResort((failure, told) => {
    if (told) log.error({ err: failure }, 'control code failed: sessions go on, and no new ones are opened')
    if (lastResort.impairment?.failures === 1)
      void notifyStatus(`impaired, opens no new sessions: ${failure.message}`, (reason) => log.error(reason))
  })
  let collect = () => {}
  const server = new SwapServer({
    collect: () => collect(),
    memory,
    slabSize: parseSize(options.slabSize, '--slab-size'),
    sessionTimeout: options.sessionTimeout * 1000,
    bandwidth: options.bandwidth === '0' ? 0 : parseSize(options.bandwidth, '--bandwidth'),
    lending: { headroom: parseHeadroom(options.headroom, new HostMemorySource().total) },
    tenants: tenantsOf(options),
    audit: auditLog(log, options.auditLog),
    maxLinger: options.maxLinger * 1000,
    impairment: () => lastResort.impairment,
    log,
  })
  const say = (event: string, fields: Record<string, unknown>, text: string) =>
    process.stdout.write(`${options.json ? JSON.stringify({ event, ...fields }) : text}\n`)
  const listeners: string[] = []
  checkRuntimeDirectory()
  const operation = await OperatorInterface.start(server, { metrics: options.metrics, listeners })
  const now = new AbortController()
  const end = async (signal: NodeJS.Signals) => {
    await notifyStopping(patience, (reason) => log.error(reason))
    await endServer(server, { patience, now: now.signal, say })
    operation.close()
    const { userCpuUs, systemCpuUs } = server.query('operator')
    say('stopped', { signal, userCpuUs, systemCpuUs }, `stopped by ${signal}`)
    process.exit(0)
  }
  let ending: Promise<void> | undefined
  const stop = (signal: NodeJS.Signals) => {
    // A second request means: end at once.
    if (ending !== undefined) now.abort()
    ending ??= end(signal).catch((failure: Error) => {
      log.error({ err: failure }, 'the end failed: the process ends at once')
      process.exit(EXIT.internal)
    })
  }
  handleSignals({ end: stop, hangup: 'kept', say: (line) => log.warn(line) })
  collect = disableIdleGc()
  try {
    for (const uri of options.listen) {
      const listening = await listenAt(server, uri)
      listeners.push(listening)
      say(
        'listening',
        { uri: listening, memory: server.store.total * server.store.slabSize },
        `listening ${listening}`,
      )
    }
    // From here on others may have their memory here.
    lastResort.install()
    const { metricsUri } = operation
    if (metricsUri !== undefined) say('metrics', { uri: metricsUri }, `metrics ${metricsUri}`)
  } catch (failure) {
    operation.close()
    await server.close()
    throw failure
  }
  const lent = formatSize(server.store.total * server.store.slabSize)
  const { shortfall } = server.lending
  if (shortfall !== undefined) log.warn(shortfall)
  const { shortage, budget } = server
  if (shortage !== undefined) log.warn(shortage)
  log.info({ memory: lent, epoch: server.epoch, places: budget }, 'ready')
  await notifyReady(`lends ${lent} at ${listeners.join(', ')}`, (reason) => log.error(reason))
}

/** @throws UsageError: the machine never has as much, and no option says that this is intended */
function memoryOf({ memory, overcommit }: ServeOptions): number {
  const bytes = parseSize(memory, '--memory')
  const { total } = new HostMemorySource()
  if (bytes > total && !overcommit)
    throw new UsageError(
      `--memory ${memory} exceeds the ${formatSize(total)} of this machine, or of its control group; choose less, or add --overcommit to lend as much as can be spared`,
    )
  return bytes
}

function tenantsOf({ tenants }: ServeOptions): Tenants {
  if (tenants === undefined) return Tenants.open()
  try {
    return Tenants.load(tenants)
  } catch (failure) {
    throw nameOption('--tenants', failure)
  }
}

async function listenAt(server: SwapServer, uri: string): Promise<string> {
  try {
    return await server.listen(uri)
  } catch (failure) {
    // Its folder was looked at before: it is one in which nothing can be made, as in /proc.
    if ((failure as { code?: unknown }).code === 'ENOENT')
      throw new ExitError(`--listen ${uri}: ${oneLineMessage(failure)}`, EXIT.usage)
    throw nameOption(`--listen ${uri}`, failure)
  }
}
