import { bashCompletion } from './bash-completion.js'
import { commandTree } from './command-tree.js'
import { fishCompletion } from './fish-completion.js'
import { load } from './programs.js'

const client = await load('nbd-client')
const server = await load('swap-server')
const { EXIT, oneLineMessage, exitStatusOf, ignoreBrokenPipe, programCommand, runCommandLine } = client
type Command = ReturnType<typeof programCommand>

const COMPLETIONS = { bash: bashCompletion, fish: fishCompletion }

/** Another program's command, under its name: for the help. What it does is done before this one is loaded. */
function addCommand(program: Command, command: Command, name = command.name()): void {
  const added = program.command(name).description(command.summary() || command.description())
  added.usage(command.usage())
  added.helpInformation = () => command.helpInformation()
}

export function commands(): Command {
  const program = programCommand('rdmakit', import.meta.url).description(
    "Remote swap over RDMA: lend this machine's memory to others, or use theirs as a block device.",
  )
  program.commandsGroup('Use the memory of other machines (nbd-client):')
  for (const command of client.commands('rdmakit').commands)
    if (!['status', 'help'].includes(command.name())) addCommand(program, command as Command)
  program.commandsGroup('Lend memory to other machines (swap-server):')
  addCommand(program, server.commands('rdmakit swap-server'), 'swap-server')
  program.commandsGroup('Other commands:')
  addStatus(program)
  program
    .command('completion')
    .description('Print a shell completion script.')
    .addArgument(
      program
        .createArgument('<shell>', 'bash (for zsh, after "bashcompinit") or fish')
        .choices(Object.keys(COMPLETIONS)),
    )
    .withNotes({ examples: ['source <(rdmakit completion bash)', 'rdmakit completion fish | source'] })
    .action(
      async (shell: keyof typeof COMPLETIONS) =>
        void process.stdout.write(COMPLETIONS[shell](await commandTree(program))),
    )
  client.addHelp(program)
  return program.withNotes({
    notes: [
      'If their own packages are installed, "swap-server" is the same as "rdmakit swap-server", and "nbd-client attach" the same as "rdmakit attach".',
    ],
    examples: [
      'rdmakit swap-server --listen rdma://10.0.0.1:7471 --memory 8G',
      'rdmakit attach --server rdma://10.0.0.1:7471 --size 8G --swap',
      'rdmakit status --watch',
      'rdmakit help attach',
    ],
  })
}

function addStatus(program: Command): void {
  program
    .command('status')
    .description('Show the running swap-servers and nbd-clients of this machine.')
    .option('--json', 'print a JSON object of two arrays; with --watch, one per line', false)
    .option('--watch [seconds]', 'refresh every N seconds (default 1)', client.parseWatchInterval)
    .withNotes({
      notes: [
        `Exit status: ${EXIT.ok} all is well, ${EXIT.unavailable} neither a swap-server nor an nbd-client is running, or one does not answer, ${EXIT.degraded} one is degraded: see "rdmakit swap-server help status" and "nbd-client help status".`,
      ],
      examples: ['rdmakit status', 'rdmakit status --watch 5', 'rdmakit status --json'],
    })
    .action(async ({ json, watch }: { json: boolean; watch?: number | true }) => {
      const of = { servers: await server.loadServers(), clients: await client.loadClients() }
      await client.printStatus({
        json,
        seconds: watch === true ? 1 : watch,
        take: async (unreachable) => ({
          servers: await of.servers.take(unreachable),
          clients: await of.clients.take(unreachable),
        }),
        nothing: 'neither a swap-server nor an nbd-client is running',
        format: ({ servers, clients }, before, seconds) =>
          [
            of.servers.format(servers, before?.servers, seconds),
            of.clients.format(clients, before?.clients, seconds),
          ]
            .filter((tables) => tables !== '')
            .join('\n'),
        judge: ({ servers, clients }) => {
          if (servers.length === 0 && clients.length === 0) return EXIT.unavailable
          return Math.max(
            servers.length === 0 ? EXIT.ok : of.servers.judge(servers),
            clients.length === 0 ? EXIT.ok : of.clients.judge(clients),
          )
        },
      })
    })
}

/** Runs what is no other program's command line. */
export async function main(words: readonly string[]): Promise<void> {
  ignoreBrokenPipe()
  try {
    await runCommandLine(commands(), words)
  } catch (failure) {
    process.stderr.write(`rdmakit: ${oneLineMessage(failure)}\n`)
    process.exit(exitStatusOf(failure))
  }
  process.exit()
}
