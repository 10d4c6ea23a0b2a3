import {
  EXIT,
  integerInRange,
  type ProgramCommand,
  pathArgument,
  secondsInRange,
} from '@rdmakit/operator-kit'
import { Option } from 'commander'
import type { ServeOptions } from './serve.js'
import { uriOf } from './uri-argument.js'

const DAY = 86_400
const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent']

export function addServe(program: ProgramCommand, typed: string): ProgramCommand {
  return program
    .command('serve')
    .description('Lend memory until SIGTERM. "serve" is the default command and may be left out.')
    .optionsGroup('Memory:')
    .requiredOption(
      '--listen <uri>',
      'address to listen at, repeatable: rdma://host:port, iwarp://host:port or shm:///path; port 0 takes a free one',
      (uri: string, uris: string[] = []) => [...uris, uriOf(uri)],
    )
    .requiredOption('--memory <size>', 'maximum memory to lend, e.g. 4G')
    .option(
      '--overcommit',
      'allow more --memory than this machine has; it lends only what it can spare at the time',
      false,
    )
    .option('--slab-size <size>', 'unit of allocation, a power of two', '64M')
    .option(
      '--headroom <size>',
      'memory that the host keeps for itself, a size or a percentage; with less, clients are asked to return slabs; 0: no check',
      '5%',
    )
    .optionsGroup('Clients:')
    .option(
      '--tenants <file>',
      'JSON file with the tenants, their keys and limits; default: anyone may connect',
    )
    .option(
      '--bandwidth <size>',
      'bandwidth of the link per second, divided among tenants; 0: unknown, only the limits in --tenants apply',
      '0',
    )
    .option(
      '--session-timeout <seconds>',
      'time without a message after which a client counts as dead and its memory is freed',
      secondsInRange(1, DAY),
      15,
    )
    .option(
      '--max-linger <seconds>',
      'longest time to keep the memory of a disconnected client that asked for it; 0: never',
      secondsInRange(0, DAY),
      600,
    )
    .option(
      '--drain <seconds>',
      'time for clients to move their pages to other servers when this one stops; 0: none',
      integerInRange(0, DAY),
      60,
    )
    .optionsGroup('Output:')
    .option('--metrics <host:port>', 'serve Prometheus metrics here; a port alone means loopback')
    .option('--audit-log <file>', 'append a JSON line for each session, allocation and refusal', pathArgument)
    .addOption(
      new Option('--log-level <level>', 'level of the log on stderr').choices(LOG_LEVELS).default('warn'),
    )
    .option('--json', 'print events as JSON lines', false)
    .optionsGroup('Options:')
    .withNotes({
      notes: [
        'Prints "listening <uri>" for each listener once it is ready. SIGTERM or SIGINT stops the server: it asks clients to move their pages to other servers, for --drain at most, then closes the sessions and frees their memory. A second signal stops it at once. SIGHUP rereads --tenants and reopens --audit-log. Logs go to stderr as JSON lines.',
        'Security: without --tenants, anyone who can connect may allocate memory. Nothing is encrypted: listen on loopback or on a trusted network.',
        EXIT_STATUSES,
      ],
      examples: [
        `${typed} --listen rdma://10.0.0.1:7471 --memory 8G`,
        `${typed} --listen rdma://10.0.0.1:7471 --memory 8G --tenants /etc/rdmakit/tenants.json --metrics 9471`,
        `${typed} --listen iwarp://127.0.0.1:0 --memory 1G --slab-size 16M --json`,
      ],
    })
    .action(async (options: ServeOptions) => {
      const { serve } = await import('./serve.js')
      await serve(options)
    })
}

const EXIT_STATUSES = `Exit status: ${EXIT.ok} after a signal to stop, ${EXIT.usage} invalid command line, ${EXIT.system} the kernel lacks or refuses something needed, ${EXIT.taken} an address or a path is in use, ${EXIT.forbidden} permission denied, ${EXIT.configuration} an invalid file, ${EXIT.failed} anything else.`
