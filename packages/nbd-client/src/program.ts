import {
  addHelp,
  EXIT,
  exitStatusOf,
  ignoreBrokenPipe,
  integerInRange,
  oneLineMessage,
  type ProgramCommand,
  parseWatchInterval,
  printStatus,
  programCommand,
  redirectWarnings,
  runCommandLine,
} from '@rdmakit/operator-kit'
import { addAttach } from './commands/attach-command.js'
import { addServe } from './commands/serve-command.js'
import { DAY } from './commands/volume-flags.js'
import { say } from './report/log.js'

/** The commands of nbd-client. @param typed how it is called, e.g. `rdmakit` */
export function commands(typed: string): ProgramCommand {
  const program = programCommand('nbd-client', import.meta.url, typed).description(
    "Other machines' memory as a Linux block device, for swap, or as an NBD export.",
  )
  addServe(program, typed)
  addAttach(program, typed)
  addDetach(program, typed)
  addUpgrade(program, typed)
  addStatus(program, typed)
  addHelp(program)
  return program.withNotes({
    notes: [EXIT_STATUSES],
    examples: [
      `${typed} attach --server rdma://10.0.0.1:7471 --size 4G --swap`,
      `${typed} serve --server iwarp://127.0.0.1:7471 --size 1G --unix /tmp/memory.sock`,
      `${typed} status --watch`,
      `${typed} help attach`,
    ],
  })
}

const EXIT_STATUSES = `Exit status: ${EXIT.ok} after an orderly end, ${EXIT.usage} the command line is wrong, ${EXIT.unavailable} a server cannot be reached or has too little memory, ${EXIT.system} the kernel lacks what is needed, ${EXIT.taken} an address, a device or a path is in use, ${EXIT.forbidden} permission denied, ${EXIT.configuration} a file is invalid, ${EXIT.fenced} another process has taken the volume over, ${EXIT.failed} any other failure.`

function addDetach(program: ProgramCommand, typed: string): void {
  program
    .command('detach')
    .argument('<device>', 'e.g. /dev/nbd0')
    .description('Detach a device: run swapoff if it is swap, then end its nbd-client.')
    .option('--timeout <seconds>', 'maximum time to detach', integerInRange(1, DAY), 300)
    .option(
      '--force',
      'detach even if the device is in use, holds pages that would be lost, or was made by another program',
      false,
    )
    .withNotes({
      notes: [
        'A device in use is not detached; the error names what uses it: mounts, dm, md, zram or loop devices on it or on its partitions, processes that have it open. A device whose pages only the next "attach --state" can bring back is not detached either, nor one made by another program. With --force, swapoff may take up to --timeout; then the device ends, its users get I/O errors, and programs that touch a lost page are killed.',
      ],
      examples: [`${typed} detach /dev/nbd0`],
    })
    .action(async (device: string, options: { timeout: number; force: boolean }) => {
      const { detach } = await import('./detach/detach.js')
      await detach(device, options)
    })
}

function addUpgrade(program: ProgramCommand, typed: string): void {
  program
    .command('upgrade')
    .argument('[device]', 'e.g. /dev/nbd0; default: the only attached device')
    .argument('[command...]', `after --: the new command line, ${typed} attach …; default: the old one`)
    .option('--pid <pid>', 'instead of a device: the process that serves it', integerInRange(1, 2 ** 22))
    .description(
      'Replace the process that serves a device, for example by a new version. Requests wait for a moment.',
    )
    .withNotes({
      notes: [`If the new process fails, the old one continues, and the exit status is ${EXIT.failed}.`],
      examples: [
        `${typed} upgrade`,
        `${typed} upgrade /dev/nbd0 -- /opt/rdmakit-2/bin/${typed} attach --server rdma://10.0.0.1:7471 --size 4G --device /dev/nbd0 --swap`,
      ],
    })
    .action(async (device: string | undefined, command: string[], { pid }: { pid?: number }) => {
      const { upgrade } = await import('./commands/upgrade-command.js')
      const which = { ...(device === undefined ? {} : { device }), ...(pid === undefined ? {} : { pid }) }
      const done = await upgrade(which, command.length === 0 ? undefined : command)
      process.stdout.write(
        `upgraded ${done.device}: process ${done.pid} has taken over, requests waited ${done.pause} ms\n`,
      )
    })
}

function addStatus(program: ProgramCommand, typed: string): void {
  program
    .command('status')
    .description('Show the running nbd-clients of this machine.')
    .option('--json', 'print a JSON array; with --watch, one per line', false)
    .option('--watch [seconds]', 'refresh every N seconds (default 1)', parseWatchInterval)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all is well, ${EXIT.unavailable} no nbd-client is running, or one does not answer, ${EXIT.degraded} one is degraded: a server is gone, slabs lack a replica, pages are lost, the backup or its control code has failed, or it no longer owns its device.`,
      ],
      examples: [`${typed} status`, `${typed} status --watch 5`, `${typed} status --json`],
    })
    .action(async ({ json, watch }: { json: boolean; watch?: number | true }) => {
      const { printClientStatus } = await import('./commands/status-command.js')
      await printClientStatus({ json, seconds: watch === true ? 1 : watch })
    })
}

/**
 * Runs a command line of nbd-client; the process ends with it.
 * @param words behind the program's name
 */
export async function main(words: readonly string[], typed = 'nbd-client'): Promise<void> {
  // A command is over when it says so, and not when nothing that Node.js knows is open: a lane, for instance, is a thread
  // of the engine.
  setInterval(() => {}, 2 ** 30)
  ignoreBrokenPipe()
  redirectWarnings(({ name, message }) => say(`${name}: ${message}`))
  try {
    await runCommandLine(commands(typed), words)
  } catch (failure) {
    process.stderr.write(`nbd-client: ${oneLineMessage(failure)}\n`)
    process.exit(exitStatusOf(failure))
  }
  // Everything that the commands opened is closed by now; nothing else may keep the process running.
  process.exit()
}

// For rdmakit, the program that has these commands among its own.
export {
  addHelp,
  EXIT,
  exitStatusOf,
  ignoreBrokenPipe,
  oneLineMessage,
  parseWatchInterval,
  printStatus,
  programCommand,
  runCommandLine,
}

export async function loadClients() {
  return (await import('./commands/status-command.js')).CLIENTS
}
