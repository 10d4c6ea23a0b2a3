import {
  addHelp,
  EXIT,
  exitStatusOf,
  ignoreBrokenPipe,
  integerInRange,
  nameOption,
  oneLineMessage,
  type ProgramCommand,
  parseWatchInterval,
  programCommand,
  runCommandLine,
} from '@rdmakit/operator-kit'
import { type Key, readKeyFile } from '../protocol/key-file.js'
import { reclaimMemory } from './reclaim.js'
import { addServe } from './serve-command.js'
import { printServerStatus, SERVERS } from './status.js'
import { stopServer } from './stop.js'
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
      `Without a command it serves: see "${typed} help serve" for the options.`,
      ...(notes.notes ?? []),
    ],
    examples: [...notes.examples, `${typed} status --watch`, `${typed} stop`],
  })
}

function keyOf(file: string): Key {
  try {
    return readKeyFile(file)
  } catch (failure) {
    throw nameOption('--key-file', failure)
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
