import {
  addHelp,
  EXIT,
  exitStatusOf,
  ignoreBrokenPipe,
  integerInRange,
  oneLineMessage,
  type ProgramCommand,
  parseWatchInterval,
  programCommand,
  runCommandLine,
} from '@rdmakit/operator-kit'
import { addServe } from './serve-command.js'
import { keyOf, tenantArgument } from './tenant-argument.js'
import { uriOf } from './uri-argument.js'

const DAY = 86_400
const PID = integerInRange(1, 2 ** 22)

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
      `Without a command it runs "serve": see "${typed} help serve" for the options.`,
      ...(notes.notes ?? []),
    ],
    examples: [...notes.examples, `${typed} status --watch`, `${typed} stop`],
  })
}

function addStatus(program: ProgramCommand, typed: string): void {
  program
    .command('status')
    .description('Show the running swap-servers of this machine, or those at <uri>.')
    .argument('[uri...]', 'addresses of remote servers', (uri: string, uris: string[] = []) => [
      ...uris,
      uriOf(uri),
    ])
    .option('--tenant <name>', 'tenant to ask as; an operator sees all tenants', tenantArgument)
    .option('--key-file <file>', 'file holding the tenant key (id:secret)')
    .option('--json', 'print a JSON array; with --watch, one per line', false)
    .option('--watch [seconds]', 'refresh every N seconds (default 1)', parseWatchInterval)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all servers are healthy, ${EXIT.unavailable} no server is running or one does not answer, ${EXIT.degraded} a server is impaired: part of it failed, and it opens no new sessions.`,
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
        const { printServerStatus } = await import('./status.js')
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
      'Take memory back now: the server lends that much less, and asks clients to move slabs to other servers.',
    )
    .argument('<size>', 'amount to take back, e.g. 2G; all: what is lent; 0: lend everything again')
    .option('--pid <pid>', 'process ID of the swap-server, if several run here', PID)
    .option('--hold <seconds>', 'how long to lend that much less', integerInRange(0, DAY), 60)
    .option('--wait <seconds>', 'how long to wait for the memory', integerInRange(0, DAY), 60)
    .option('--json', 'print JSON', false)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all of it is back, ${EXIT.failed} part of it is still lent, ${EXIT.unavailable} no such server is running, or the request exceeds what it has lent (nothing is done then).`,
      ],
      examples: [`${typed} reclaim 2G --wait 300`, `${typed} reclaim all --hold 1800`, `${typed} reclaim 0`],
    })
    .action(async (size: string, options: { pid?: number; hold: number; wait: number; json: boolean }) => {
      const { reclaimMemory } = await import('./reclaim.js')
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
      'Stop a running server of this machine, after clients had up to its --drain time to move their pages.',
    )
    .option('--pid <pid>', 'process ID of the swap-server, if several run here', PID)
    .option('--now', 'stop at once: pages that only this server has are lost', false)
    .option(
      '--wait <seconds>',
      'how long to wait for its end; longer than its --drain',
      integerInRange(0, DAY),
      300,
    )
    .withNotes({ examples: [`${typed} stop`, `${typed} stop --pid 4711 --wait 600`] })
    .action(async ({ pid, now, wait }: { pid?: number; now: boolean; wait: number }) => {
      const { stopServer } = await import('./stop.js')
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

export async function loadServers() {
  return (await import('./status.js')).SERVERS
}
