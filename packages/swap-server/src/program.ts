#!/usr/bin/env -S node --expose-gc --no-incremental-marking
import { parseUri, UsageError } from '@rdmakit/verbs'
import { Command, InvalidArgumentError } from 'commander'
import { type Logger, pino } from 'pino'
import { endServer } from './ending.js'
import { EXIT, exitStatusOf, withExitStatus } from './exit-status.js'
import { parseHeadroom } from './headroom.js'
import { HostMemorySource } from './host-memory.js'
import { LastResort } from './last-resort.js'
import { auditLog, Operation } from './operation.js'
import { LossyLines, outliveReaders, outrunReaders, tellWarnings } from './readers.js'
import { reclaimMemory } from './reclaim-command.js'
import { readKeyFile } from './secret-file.js'
import { SwapServer } from './server.js'
import { notifyReady, notifyStatus, notifyStopping } from './service-manager.js'
import { settleHeap } from './settle-heap.js'
import { decideSignals } from './signals.js'
import { formatSize, parseSize } from './size.js'
import { printServerStatus } from './status.js'
import { stopServer } from './stop-command.js'
import { Tenants } from './tenants.js'
import { watchSeconds } from './watch.js'

interface Options {
  listen: string[]
  memory: string
  slabSize: string
  sessionTimeout: string
  headroom: string
  bandwidth: string
  tenants?: string
  auditLog?: string
  metrics?: string
  maxLinger: string
  drain: number
  logLevel: string
  json: boolean
}

function wholeOf(what: string) {
  return (text: string): number => {
    if (!/^\d{1,7}$/.test(text)) throw new InvalidArgumentError(`${what} is a whole number.`)
    return Number(text)
  }
}

const program = withExitStatus(new Command('swap-server')).description(
  "Lends this machine's memory to nbd-clients, which reach it by one-sided RDMA.",
)

const serve = program
  .command('serve', { isDefault: true })
  .description('Lend memory until SIGTERM; also without the word "serve".')
  .requiredOption(
    '--listen <uri>',
    'where to listen, any number of times: rdma://host:port, iwarp://host:port, shm:///path; port 0 takes a free one',
    (uri: string, uris: string[]) => [...uris, uri],
    [] as string[],
  )
  .requiredOption('--memory <size>', 'memory to lend at most, e.g. 4G')
  .option('--slab-size <size>', 'unit in which it is lent, a power of two', '64M')
  .option('--session-timeout <seconds>', 'a client silent for longer is dead and its memory freed', '15')
  .option(
    '--headroom <size>',
    "what the host keeps of its memory: a size or a percentage; below it owners are asked for slabs back; 0: don't look",
    '5%',
  )
  .option(
    '--bandwidth <size>',
    'of the link, per second: what is divided among tenants; 0: unknown, only their own limits hold',
    '0',
  )
  .option('--tenants <file>', 'JSON: who may have memory, with which key, how much; default: everybody')
  .option('--audit-log <file>', 'append a JSON line for each session, allocation and refusal')
  .option('--metrics <host:port>', 'serve metrics to Prometheus; a port alone is on loopback')
  .option(
    '--max-linger <seconds>',
    'how long a client that asks for it may be gone and find its memory again; 0: not at all',
    '600',
  )
  .option(
    '--drain <seconds>',
    'how long clients may take to move what they have here to other servers when this one is stopped; 0: not at all',
    wholeOf('--drain'),
    60,
  )
  .option('--log-level <level>', 'trace, debug, info, warn, error, silent', 'warn')
  .option('--json', 'print events as JSON lines', false)
  .addHelpText(
    'after',
    `
Prints "listening <uri>" for each listener once it is ready. SIGTERM or SIGINT ends it: clients are asked to
move what they have here, for --drain at most, then sessions are closed and their memory is freed; a second
signal ends it at once. SIGHUP reads --tenants anew and opens --audit-log anew. Logs go to
stderr as JSON lines.

Examples:
  swap-server --listen rdma://10.0.0.1:7471 --memory 8G
  swap-server --listen rdma://10.0.0.1:7471 --memory 8G --tenants /etc/rdmakit/tenants.json --metrics 9471
  swap-server --listen iwarp://127.0.0.1:0 --memory 1G --slab-size 16M --json

Security: without --tenants anyone who can connect may take memory. Nothing is encrypted: listen on loopback or
on a network that you trust.`,
  )
  .action(run)

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
  const seconds = Number(options.sessionTimeout)
  if (!(seconds >= 1 && seconds <= 86_400))
    throw new UsageError(
      `--session-timeout "${options.sessionTimeout}" is not a number of seconds from 1 to 86400`,
    )
  const maxLinger = Number(options.maxLinger)
  if (!(maxLinger >= 0 && maxLinger <= 86_400))
    throw new UsageError(`--max-linger "${options.maxLinger}" is not a number of seconds from 0 to 86400`)
  if (options.drain > 86_400)
    throw new UsageError(`--drain "${options.drain}" is not a number of seconds from 0 to 86400`)
  const patience = 1000 * options.drain
  outrunReaders()
  const log = logTo(options.logLevel)
  tellWarnings((warning) => log.warn({ err: warning }, warning.message))
  const lastResort = new LastResort((failure, told) => {
    if (told)
      log.error({ err: failure }, 'control code has failed: sessions go on, and no new ones are opened')
    if (lastResort.impairment?.failures === 1)
      void notifyStatus(`impaired, opens no new sessions: ${failure.message}`, (reason) => log.error(reason))
  })
  let collect = () => {}
  const server = new SwapServer({
    collect: () => collect(),
    memory: parseSize(options.memory, '--memory'),
    slabSize: parseSize(options.slabSize, '--slab-size'),
    sessionTimeout: seconds * 1000,
    bandwidth: options.bandwidth === '0' ? 0 : parseSize(options.bandwidth, '--bandwidth'),
    lending: { headroom: parseHeadroom(options.headroom, new HostMemorySource().total) },
    tenants: options.tenants === undefined ? Tenants.open() : Tenants.load(options.tenants),
    audit: auditLog(log, options.auditLog),
    maxLinger: maxLinger * 1000,
    impairment: () => lastResort.impairment,
    log,
  })
  const say = (event: string, fields: Record<string, unknown>, text: string) =>
    process.stdout.write(`${options.json ? JSON.stringify({ event, ...fields }) : text}\n`)
  const listeners: string[] = []
  const operation = await Operation.start(server, { metrics: options.metrics, listeners })
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
  decideSignals({ end: stop, hangup: 'kept', say: (line) => log.warn(line) })
  collect = settleHeap()
  try {
    for (const uri of options.listen) {
      const listening = await server.listen(uri)
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
  const memory = formatSize(server.store.total * server.store.slabSize)
  const { shortfall } = server.lending
  if (shortfall !== undefined) log.warn(shortfall)
  const { shortage, budget } = server
  if (shortage !== undefined) log.warn(shortage)
  log.info({ memory, epoch: server.epoch, places: budget }, 'ready')
  await notifyReady(`lends ${memory} at ${listeners.join(', ')}`, (reason) => log.error(reason))
}

program
  .command('status')
  .description('Show the running swap-servers of this machine, or those at <uri>.')
  .argument('[uri...]', 'of remote servers')
  .option('--tenant <name>', 'who asks; an operator is told of all tenants')
  .option('--key-file <file>', 'its key, a line id:secret')
  .option('--json', 'as a JSON array; with --watch one each line', false)
  .option('--watch [seconds]', 'again and again, each second or as often as said', watchSeconds)
  .action(
    async (
      uris: string[],
      options: { tenant?: string; keyFile?: string; json: boolean; watch?: number | true },
    ) => {
      for (const uri of uris) parseUri(uri)
      await printServerStatus({
        uris,
        json: options.json,
        watch: options.watch === true ? 1 : options.watch,
        ...(options.tenant === undefined ? {} : { tenant: options.tenant }),
        ...(options.keyFile === undefined ? {} : { key: readKeyFile(options.keyFile) }),
      })
      process.exit(process.exitCode ?? EXIT.ok)
    },
  )

program
  .command('reclaim')
  .description(
    "Get memory back from clients now: the server lends so much less, and its slabs' owners move them.",
  )
  .argument('<size>', 'e.g. 2G; 0: lend again what there is')
  .option('--pid <pid>', 'of the swap-server, when several run here', wholeOf('--pid'))
  .option('--hold <seconds>', 'for which it lends no more than that', wholeOf('--hold'), 60)
  .option('--wait <seconds>', 'for the memory to come back', wholeOf('--wait'), 60)
  .option('--json', 'as JSON', false)
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

program
  .command('stop')
  .description(
    'End a running server of this machine: clients move what they have there first, for its --drain at most.',
  )
  .option('--pid <pid>', 'of the swap-server, when several run here', wholeOf('--pid'))
  .option('--now', 'without that: what only this server has is lost', false)
  .option('--wait <seconds>', 'for its end, longer than its --drain', wholeOf('--wait'), 300)
  .action(async ({ pid, now, wait }: { pid?: number; now: boolean; wait: number }) => {
    await stopServer({ pid, now, wait })
    process.exit(EXIT.ok)
  })

program.addHelpText('after', () => `\n${serve.helpInformation()}`)

outliveReaders()
program.parseAsync().catch((failure: Error) => {
  process.stderr.write(`swap-server: ${failure.message}\n`)
  process.exit(exitStatusOf(failure))
})
