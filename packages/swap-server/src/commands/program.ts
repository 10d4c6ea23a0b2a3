import {
  addHelp,
  argumentParser,
  checkRuntimeDirectory,
  checkSocketPath,
  disableIdleGc,
  EXIT,
  ExitError,
  exitStatusOf,
  formatSize,
  handleSignals,
  ignoreBrokenPipe,
  integerInRange,
  LastResort,
  LossyLines,
  makeStdioNonBlocking,
  nameOption,
  oneLineMessage,
  type ProgramCommand,
  parseAddress,
  parseSize,
  parseWatchInterval,
  programCommand,
  redirectWarnings,
  runCommandLine,
  secondsInRange,
} from '@rdmakit/operator-kit'
import { parseUri, UsageError } from '@rdmakit/verbs'
import { Option } from 'commander'
import { type Logger, pino } from 'pino'
import { type Key, readKeyFile } from '../protocol/key-file.js'
import { parseHeadroom } from '../server/memory/host-headroom.js'
import { HostMemorySource } from '../server/memory/host-memory.js'
import { SwapServer } from '../server/server.js'
import { Tenants } from '../server/tenants/tenants.js'
import { auditLog, OperatorInterface } from './operator-interface.js'
import { reclaimMemory } from './reclaim.js'
import { notifyReady, notifyStatus, notifyStopping } from './service-manager.js'
import { endServer } from './shutdown.js'
import { printServerStatus, SERVERS } from './status.js'
import { stopServer } from './stop.js'

interface Options {
  listen: string[]
  memory: string
  overcommit: boolean
  slabSize: string
  sessionTimeout: number
  headroom: string
  bandwidth: string
  tenants?: string
  auditLog?: string
  metrics?: string
  maxLinger: number
  drain: number
  logLevel: string
  json: boolean
}

const DAY = 86_400
const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent']
const PID = integerInRange(1, 2 ** 22)

const uriOf = argumentParser((uri) => {
  parseUri(uri)
  return uri
})

/** The commands of swap-server. @param typed how it is called, e.g. `rdmakit swap-server` */
export function commands(typed: string): ProgramCommand {
  const program = programCommand('swap-server', import.meta.url, typed).description(
    "Lends this machine's memory to nbd-clients, which reach it by one-sided RDMA.",
  )
  const { notes } = addServe(program, typed)
  addStatus(program, typed)
  addReclaim(program, typed)
  addStop(program, typed)
  addHelp(program)
  return program.withNotes({
    notes: [
      `Without a command it serves: see "${typed} help serve" for the options.`,
      ...(notes.notes ?? []),
    ],
    examples: [...notes.examples, `${typed} status --watch`, `${typed} stop`],
  })
}

function addServe(program: ProgramCommand, typed: string): ProgramCommand {
  return program
    .command('serve')
    .description('Lend memory until SIGTERM; also without the word "serve".')
    .optionsGroup('What it lends:')
    .requiredOption(
      '--listen <uri>',
      'where to listen, any number of times: rdma://host:port, iwarp://host:port, shm:///path; port 0 takes a free one',
      (uri: string, uris: string[] = []) => [...uris, uriOf(uri)],
    )
    .requiredOption('--memory <size>', 'memory to lend at most, e.g. 4G')
    .option(
      '--overcommit',
      'lend more than this machine has, as far as it can spare it when it is asked for',
      false,
    )
    .option('--slab-size <size>', 'unit in which it is lent, a power of two', '64M')
    .option(
      '--headroom <size>',
      "what the host keeps of its memory: a size or a percentage; below it owners are asked for slabs back; 0: don't look",
      '5%',
    )
    .optionsGroup('To whom, and for how long:')
    .option('--tenants <file>', 'JSON: who may have memory, with which key, how much; default: everybody')
    .option(
      '--bandwidth <size>',
      'of the link, per second: what is divided among tenants; 0: unknown, only their own limits hold',
      '0',
    )
    .option(
      '--session-timeout <seconds>',
      'a client silent for longer is dead and its memory freed',
      secondsInRange(1, DAY),
      15,
    )
    .option(
      '--max-linger <seconds>',
      'how long a client that asks for it may be gone and find its memory again; 0: not at all',
      secondsInRange(0, DAY),
      600,
    )
    .option(
      '--drain <seconds>',
      'how long clients may take to move what they have here to other servers when this one is stopped; 0: not at all',
      integerInRange(0, DAY),
      60,
    )
    .optionsGroup('What it tells:')
    .option('--metrics <host:port>', 'serve metrics to Prometheus; a port alone is on loopback')
    .option('--audit-log <file>', 'append a JSON line for each session, allocation and refusal')
    .addOption(new Option('--log-level <level>', 'of the log on stderr').choices(LOG_LEVELS).default('warn'))
    .option('--json', 'print events as JSON lines', false)
    .optionsGroup('Options:')
    .withNotes({
      notes: [
        'Prints "listening <uri>" for each listener once it is ready. SIGTERM or SIGINT ends it: clients are asked to move what they have here, for --drain at most, then sessions are closed and their memory is freed; a second signal ends it at once. SIGHUP reads --tenants and opens --audit-log again. Logs go to stderr as JSON lines.',
        'Security: without --tenants anyone who can connect may take memory. Nothing is encrypted: listen on loopback or on a network that you trust.',
        EXIT_STATUSES,
      ],
      examples: [
        `${typed} --listen rdma://10.0.0.1:7471 --memory 8G`,
        `${typed} --listen rdma://10.0.0.1:7471 --memory 8G --tenants /etc/rdmakit/tenants.json --metrics 9471`,
        `${typed} --listen iwarp://127.0.0.1:0 --memory 1G --slab-size 16M --json`,
      ],
    })
    .action(run)
}

const EXIT_STATUSES = `Exit status: ${EXIT.ok} after a signal to end, ${EXIT.usage} the command line is wrong, ${EXIT.system} the kernel has not what is needed, ${EXIT.taken} an address or a path is taken, ${EXIT.forbidden} something is not permitted, ${EXIT.configuration} a file is wrong, ${EXIT.failed} anything else.`

/** Of this program's log, which nobody may wait for: heartbeats and sessions would. */
function logTo(level: string): Logger {
  const about = { pid: process.pid, name: 'swap-server' }
  const lost = (count: number) => {
    const msg = `${count} lines of the log were lost: nobody read it`
    return `${JSON.stringify({ level: pino.levels.values.warn, time: Date.now(), ...about, lost: count, msg })}\n`
  }
  return pino({ name: about.name, level }, new LossyLines(() => process.stderr, lost))
}

async function run(options: Options): Promise<void> {
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
    if (told)
      log.error({ err: failure }, 'control code has failed: sessions go on, and no new ones are opened')
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
    // Whoever asks a second time has no more patience.
    if (ending !== undefined) now.abort()
    ending ??= end(signal)
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

/** @throws UsageError: the machine never has as much, and nobody has said that this is meant */
function memoryOf({ memory, overcommit }: Options): number {
  const bytes = parseSize(memory, '--memory')
  const { total } = new HostMemorySource()
  if (bytes > total && !overcommit)
    throw new UsageError(
      `--memory ${memory} is more than the ${formatSize(total)} that this machine, or its control group, has; choose less, or add --overcommit to lend as much of it as can be spared`,
    )
  return bytes
}

function tenantsOf({ tenants }: Options): Tenants {
  if (tenants === undefined) return Tenants.open()
  try {
    return Tenants.load(tenants)
  } catch (failure) {
    throw nameOption('--tenants', failure)
  }
}

function keyOf(file: string): Key {
  try {
    return readKeyFile(file)
  } catch (failure) {
    throw nameOption('--key-file', failure)
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

function addStatus(program: ProgramCommand, typed: string): void {
  program
    .command('status')
    .description('Show the running swap-servers of this machine, or those at <uri>.')
    .argument('[uri...]', 'of remote servers', (uri: string, uris: string[] = []) => [...uris, uriOf(uri)])
    .option('--tenant <name>', 'who asks; an operator is told of all tenants')
    .option('--key-file <file>', 'its key, a line id:secret')
    .option('--json', 'as a JSON array; with --watch one each line', false)
    .option('--watch [seconds]', 'refresh every so many seconds, 1 if it is not said', parseWatchInterval)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all is well, ${EXIT.unavailable} no server is running, or one does not answer, ${EXIT.degraded} one has failed in part: it is impaired, and opens no new sessions.`,
      ],
      examples: [
        `${typed} status`,
        `${typed} status --watch 5`,
        `${typed} status rdma://10.0.0.1:7471 --tenant ops --key-file ops.key --json`,
      ],
    })
    .action(
      async (
        uris: string[],
        options: { tenant?: string; keyFile?: string; json: boolean; watch?: number | true },
      ) => {
        await printServerStatus({
          uris,
          json: options.json,
          watch: options.watch === true ? 1 : options.watch,
          ...(options.tenant === undefined ? {} : { tenant: options.tenant }),
          ...(options.keyFile === undefined ? {} : { key: keyOf(options.keyFile) }),
        })
        process.exit(process.exitCode ?? EXIT.ok)
      },
    )
}

function addReclaim(program: ProgramCommand, typed: string): void {
  program
    .command('reclaim')
    .description(
      "Get memory back from clients now: the server lends so much less, and its slabs' owners move them.",
    )
    .argument('<size>', 'e.g. 2G; 0: lend again what there is')
    .option('--pid <pid>', 'of the swap-server, when several run here', PID)
    .option('--hold <seconds>', 'for which it lends no more than that', integerInRange(0, DAY), 60)
    .option('--wait <seconds>', 'for the memory to come back', integerInRange(0, DAY), 60)
    .option('--json', 'as JSON', false)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all of it is back, ${EXIT.failed} a part is still out, ${EXIT.unavailable} no such server is running, or more was asked for than it has lent: then nothing is done.`,
      ],
      examples: [`${typed} reclaim 2G --wait 300`, `${typed} reclaim 0`],
    })
    .action(async (size: string, options: { pid?: number; hold: number; wait: number; json: boolean }) => {
      const { text, complete, outcome } = await reclaimMemory({
        size,
        pid: options.pid,
        hold: options.hold,
        wait: options.wait,
      })
      process.stdout.write(`${options.json ? JSON.stringify(outcome) : text}\n`)
      process.exit(complete ? EXIT.ok : EXIT.failed)
    })
}

function addStop(program: ProgramCommand, typed: string): void {
  program
    .command('stop')
    .description(
      'End a running server of this machine: clients move what they have there first, for its --drain at most.',
    )
    .option('--pid <pid>', 'of the swap-server, when several run here', PID)
    .option('--now', 'without that: what only this server has is lost', false)
    .option('--wait <seconds>', 'for its end, longer than its --drain', integerInRange(0, DAY), 300)
    .withNotes({ examples: [`${typed} stop`, `${typed} stop --pid 4711 --wait 600`] })
    .action(async ({ pid, now, wait }: { pid?: number; now: boolean; wait: number }) => {
      await stopServer({ pid, now, wait })
      process.exit(EXIT.ok)
    })
}

/**
 * Runs a command line of swap-server; the process ends with it.
 * @param words behind the program's name
 */
export async function main(words: readonly string[], typed = 'swap-server'): Promise<void> {
  ignoreBrokenPipe()
  try {
    await runCommandLine(commands(typed), words, 'serve')
  } catch (failure) {
    process.stderr.write(`swap-server: ${oneLineMessage(failure)}\n`)
    process.exit(exitStatusOf(failure))
  }
}

export { SERVERS }
