import { EXIT, integerInRange, type ProgramCommand, secondsInRange } from '@rdmakit/operator-kit'
import { Option } from 'commander'
import { serve } from './serve.js'
import { uriOf } from './uri-argument.js'

const DAY = 86_400
const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent']

export function addServe(program: ProgramCommand, typed: string): ProgramCommand {
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
    .action(serve)
}

const EXIT_STATUSES = `Exit status: ${EXIT.ok} after a signal to end, ${EXIT.usage} the command line is wrong, ${EXIT.system} the kernel has not what is needed, ${EXIT.taken} an address or a path is taken, ${EXIT.forbidden} something is not permitted, ${EXIT.configuration} a file is wrong, ${EXIT.failed} anything else.`
