#!/usr/bin/env node
import { Command } from 'commander'
import { pino } from 'pino'
import { SwapServer } from './server.js'
import { formatSize, parseSize } from './size.js'

interface Options {
  listen: string[]
  memory: string
  slabSize: string
  sessionTimeout: string
  maxLinger: string
  logLevel: string
  json: boolean
}

const program = new Command('swap-server')
  .description("Lends this machine's memory to nbd-clients, which reach it by one-sided RDMA.")
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
    '--max-linger <seconds>',
    'how long a client that asks for it may be gone and find its memory again; 0: not at all',
    '600',
  )
  .option('--log-level <level>', 'trace, debug, info, warn, error, silent', 'warn')
  .option('--json', 'print events as JSON lines', false)
  .addHelpText(
    'after',
    `
Prints "listening <uri>" for each listener once it is ready. SIGTERM or SIGINT ends it: sessions are
closed and their memory is freed. Logs go to stderr as JSON lines.

Examples:
  swap-server --listen rdma://10.0.0.1:7471 --memory 8G
  swap-server --listen iwarp://127.0.0.1:0 --memory 1G --slab-size 16M --json

Security: anyone who can connect may take memory. Listen on loopback or on a network that you trust.`,
  )

async function main(): Promise<void> {
  const options = program.parse().opts<Options>()
  const seconds = Number(options.sessionTimeout)
  if (!(seconds >= 1 && seconds <= 86_400))
    throw new Error(
      `--session-timeout "${options.sessionTimeout}" is not a number of seconds from 1 to 86400`,
    )
  const maxLinger = Number(options.maxLinger)
  if (!(maxLinger >= 0 && maxLinger <= 86_400))
    throw new Error(`--max-linger "${options.maxLinger}" is not a number of seconds from 0 to 86400`)
  const log = pino(
    { name: 'swap-server', level: options.logLevel },
    pino.destination({ dest: 2, sync: true }),
  )
  const server = new SwapServer({
    memory: parseSize(options.memory, '--memory'),
    slabSize: parseSize(options.slabSize, '--slab-size'),
    sessionTimeout: seconds * 1000,
    maxLinger: maxLinger * 1000,
    log,
  })
  const say = (event: string, fields: Record<string, unknown>, text: string) =>
    process.stdout.write(`${options.json ? JSON.stringify({ event, ...fields }) : text}\n`)
  const stop = async (signal: NodeJS.Signals) => {
    await server.close()
    const { userCpuUs, systemCpuUs } = server.query()
    say('stopped', { signal, userCpuUs, systemCpuUs }, `stopped by ${signal}`)
    process.exit(0)
  }
  process.once('SIGTERM', stop)
  process.once('SIGINT', stop)
  try {
    for (const uri of options.listen) {
      const listening = await server.listen(uri)
      say(
        'listening',
        { uri: listening, memory: server.store.total * server.store.slabSize },
        `listening ${listening}`,
      )
    }
  } catch (failure) {
    await server.close()
    throw failure
  }
  log.info({ memory: formatSize(server.store.total * server.store.slabSize), epoch: server.epoch }, 'ready')
}

main().catch((failure: Error) => {
  process.stderr.write(`swap-server: ${failure.message}\n`)
  process.exit(1)
})
