// The command line.
import { parseArgs } from 'node:util'
import { LEAST_ROUNDS } from './core/statistics.js'

export const SUITES = [
  'micro',
  'verbs',
  'ring',
  'ring-default',
  'rpc',
  'connections',
  'parameter-server',
  'nbd',
  'curves',
  'lab',
] as const
export type SuiteName = (typeof SUITES)[number]

export interface Options {
  readonly suites: readonly SuiteName[]
  readonly rounds: number
  readonly json: boolean
  readonly quick: boolean
  readonly only: RegExp | undefined
  readonly against: string | undefined
}

export type CommandLine =
  | { readonly kind: 'run'; readonly options: Options }
  | { readonly kind: 'help' }
  /** One line. */
  | { readonly kind: 'error'; readonly message: string }

export const HELP = `usage: npm run bench -- [SUITE…] [OPTION…]

Measures rdmakit beside its peers, round by round and in turn, and prints medians with their spread. The machine
must do nothing else meanwhile.

Suites, all by default, one after the other:
  micro             single operations of the ring, both ends in one process: what a change costs
  verbs             C++ over shm and iwarp beside UCX; memory and idleness of queue pairs
  ring              JavaScript to JavaScript over the ring, beside Node net, Unix sockets and zeromq
  ring-default      the same with no option set, pinned to one core and to a core each, beside Node net
  rpc               requests and answers over the ring, beside grpc-js
  connections       requests over 1 to 1,000 connections, beside Node net, and the memory of each
  parameter-server  examples/parameter-server over the ring, zeromq and sockets
  nbd               fio over NBD: ours over shm and iwarp, beside nbdkit and qemu-nbd
  curves            the same by depth and by number of connections, beside nbdkit
  lab               in guests with real kernel drivers: verbs, the ring and swap beside perftest, net, iSER, …

Options:
  --against DIR     compare this checkout with another one, built: each cell of ours on both builds in turn, without
                    peers; prints the ratio this/other of each. Not for lab
  --only PATTERN    only cells whose name matches this regular expression, with their peers. Not for lab
  --rounds N        rounds of each cell (default ${LEAST_ROUNDS}); with fewer than ${LEAST_ROUNDS} nothing is judged
  --quick           one short round, under 5 minutes for all; nothing is judged. Without the lab, if it is not named
  --json            one JSON document on stdout, with every round
  -h, --help        this text

Exit status: 0; 1 when a limit is missed, or a cell slower than the other build's, by more than the spread, or when a
sample failed; 2 for a wrong command line.
`

export function parseCommandLine(args: readonly string[]): CommandLine {
  try {
    const { values, positionals } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        against: { type: 'string' },
        only: { type: 'string' },
        rounds: { type: 'string' },
        quick: { type: 'boolean', default: false },
        json: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    })
    if (values.help) return { kind: 'help' }
    const { json, quick, against } = values
    const only = values.only === undefined ? undefined : pattern(values.only)
    const restricted = against !== undefined ? '--against' : only !== undefined ? '--only' : undefined
    const suites = suitesOf(positionals, restricted, quick)
    const rounds = roundsOf(values.rounds, quick)
    return { kind: 'run', options: { suites, rounds, json, quick, only, against } }
  } catch (error) {
    if (!(error instanceof Error)) throw error
    // Node's own messages go on with advice about "--".
    const [message = error.message] = error.message.split(/\. /)
    return { kind: 'error', message }
  }
}

/** @param restricted an option that the lab does not have */
function suitesOf(
  names: readonly string[],
  restricted: string | undefined,
  quick: boolean,
): readonly SuiteName[] {
  const suites = names.map((name) => {
    const known = SUITES.find((suite) => suite === name)
    if (known === undefined) throw new Error(`unknown suite "${name}"; known: ${SUITES.join(', ')}`)
    return known
  })
  if (restricted !== undefined && suites.includes('lab'))
    throw new Error(`lab does not support ${restricted}: leave one of the two out`)
  if (suites.length > 0) return [...new Set(suites)]
  return restricted === undefined && !quick ? SUITES : SUITES.filter((suite) => suite !== 'lab')
}

function roundsOf(text: string | undefined, quick: boolean): number {
  if (text === undefined) return quick ? 1 : LEAST_ROUNDS
  // So quick figures are never judged.
  if (quick) throw new Error('--quick is one round: leave --rounds out')
  const rounds = Number(text)
  if (!Number.isSafeInteger(rounds) || rounds < 1)
    throw new Error(`--rounds is a whole number from 1 on, not "${text}"`)
  return rounds
}

function pattern(text: string): RegExp {
  try {
    return new RegExp(text, 'i')
  } catch {
    throw new Error(`--only is a regular expression, and "${text}" is none`)
  }
}
