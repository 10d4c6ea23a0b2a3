// The lab's command line; scripts/lab.sh builds what is missing and starts it.

import { exitNoGuest, NoGuestError, UsageError } from './base/errors.js'
import { numbersOf } from './base/numbers.js'
import { benchCommand } from './bench/bench.js'
import { guestDemo } from './demo.js'
import { type LabParts, prepareLab } from './machine/lab-parts.js'
import { TestGuest } from './machine/test-guest.js'
import { count, live, type Project, testHarness, testInGuest } from './tests.js'
import { killAnythingCommand, shortTrialsCommand } from './trials/kill-anything.js'
import { memoryStormCommand } from './trials/memory-storm.js'
import { restartStormCommand } from './trials/restart-storm.js'
import { systemdCommand } from './trials/systemd.js'

const usage = `usage: npm run lab -- COMMAND

Tests
  test [WHAT…]           those whose file's name holds WHAT, in one guest; a trial by its name; all without WHAT
                         (-t NAME and other options go to vitest)
  drivers                each driver of the kernel once: what npm test runs
  kernel                 all tests in two guests side by side, the conformance suite on rxe and siw, and those of the
                         harness: what .ci/run runs
  trials                 a short trial of each front under faults, likewise

Trials, which soaks run for long
  memory-storm [--seconds N] [--ublk] [--iwarp] [--flood]
                         a guest without memory to spare, swapping to another for 300 s by default; --ublk:
                         over a device of ublk, not nbd, here and below; --iwarp: over TCP in user space, not
                         over Soft-RoCE, here and below; --flood: beside a flood of datagrams
  restart-storm [--restarts N] [--ublk] [--iwarp]
                         the same guest, whose nbd-client is killed and started again, 3 times by default
  kill-anything [--seconds N | --faults N] [--seed N] [--servers N] [--replicas N] [--backup] [--ublk]
                [--mebibytes N] [--only KIND]
                         a guest that swaps to others while one thing after another is killed, for 300 s, with
                         2 server guests and 2 replicas, by default; --backup: a copy on its own disk too;
                         --mebibytes: what the program that swaps has, half of it in memory, 64 by default;
                         --only: one kind of fault, such as "control throws"
  systemd                the services of examples/two-hosts under systemd, on two guests

Others
  bench [verbs|ring|swap] [--rounds N] [--json]
                         verbs on a guest's devices, beside perftest; the ring over rxe, beside sockets and
                         perftest; swap between two guests, beside iSER, NVMe-oF and nbdkit. All by default.
                         5 rounds by default, and with fewer nothing is judged; JSON, no tables. Ends with 1
                         when a limit is missed by more than the spread of the rounds (bench/README.md)
        swap [--mebibytes N] [--guests N] [--cpus N]
                         the array's size, 256 by default; server and client in 1 guest or in 2, the
                         default; the processors of each, 1 by default
  exec SHELL COMMAND     boot one guest and run a command in it
  demo                   remote swap between two guests, against local memory and a local disk
`

// With --json, stdout is for a program to read.
const say = (line: string): void => console[process.argv.includes('--json') ? 'error' : 'log'](`lab: ${line}`)

type Words = readonly string[]
type Run = (parts: LabParts, rest: Words) => Promise<number>

/** A word that stands for yes, and the words without it. */
const flag = (rest: Words, name: string): [given: boolean, rest: Words] => [
  rest.includes(name),
  rest.filter((word) => word !== name),
]

/** The word after a word, and the words without both. */
function value(rest: Words, name: string): [given: string | undefined, rest: Words] {
  const at = rest.indexOf(name)
  if (at === -1) return [undefined, rest]
  const given = rest[at + 1]
  if (given === undefined) throw new UsageError(`${name} needs a value`)
  return [given, rest.toSpliced(at, 2)]
}

const allProjects: readonly Project[] = ['drivers', 'device', 'network', 'swap', 'rxe', 'siw']

const trials: Readonly<Record<string, Run>> = {
  'memory-storm': async (parts, rest) => {
    const [flood, words] = flag(rest, '--flood')
    const [iwarp, others] = flag(words, '--iwarp')
    const [ublk, numbers] = flag(others, '--ublk')
    const options = { ...numbersOf(numbers, { seconds: 300 }), ublk, iwarp, flood }
    return await memoryStormCommand(parts, options, say)
  },
  'restart-storm': async (parts, rest) => {
    const [iwarp, others] = flag(rest, '--iwarp')
    const [ublk, numbers] = flag(others, '--ublk')
    return await restartStormCommand(parts, { ...numbersOf(numbers, { restarts: 3 }), ublk, iwarp }, say)
  },
  'kill-anything': async (parts, rest) => {
    const [ublk, others] = flag(rest, '--ublk')
    const [backup, more] = flag(others, '--backup')
    const [only, numbers] = value(more, '--only')
    const defaults = {
      seconds: 300,
      faults: 0,
      seed: Date.now() % 2 ** 32,
      mebibytes: 64,
      servers: 2,
      replicas: 2,
    }
    const options = { ...numbersOf(numbers, defaults), backup, ublk, ...(only !== undefined && { only }) }
    return await killAnythingCommand(parts, options, say)
  },
  systemd: (parts) => systemdCommand(parts, say),
}

const commands: Readonly<Record<string, Run>> = {
  ...trials,
  drivers: (parts) => testInGuest(parts, { projects: ['drivers'], report: 'lab-drivers.json' }, say),
  kernel: async (parts) => {
    // Each guest leaves half of the machine idle. The two take about as long, the first a little less: test-results has
    // how long.
    const statuses = await Promise.all([
      testInGuest(parts, { projects: ['device'], report: 'lab-device.json' }, say).then(async (status) =>
        Math.max(status, await testHarness([])),
      ),
      testInGuest(
        parts,
        { projects: ['drivers', 'swap', 'network', 'rxe', 'siw'], report: 'lab-swap.json' },
        say,
      ),
    ])
    return Math.max(...statuses)
  },
  trials: (parts) => shortTrialsCommand(parts, say),
  test: async (parts, rest) => {
    const [first = '', ...more] = rest
    const trial = trials[first]
    if (trial !== undefined) return await trial(parts, more)
    if (first === 'harness') return await testHarness(more)
    const report = 'lab-test.json'
    const status = await testInGuest(parts, { projects: allProjects, filter: rest, report }, say)
    // What was chosen by its name is no whole: nothing is missing of it.
    return rest.length === 0 ? status || (await count([report])) : status
  },
  bench: (parts, rest) => benchCommand(parts, rest, say),
  exec: async (parts, rest) => {
    await using booted = await TestGuest.boot(parts)
    return await live(booted.guest, rest.join(' '))
  },
}

async function main([name = 'test', ...rest]: Words): Promise<number> {
  if (name === 'demo') {
    await guestDemo()
    return 0
  }
  const command = commands[name]
  if (command === undefined) throw new UsageError(`no command is called "${name}"`)
  return await command(await prepareLab(say), rest)
}

if (process.argv.includes('--help')) {
  process.stdout.write(usage)
} else {
  try {
    process.exitCode = await main(process.argv.slice(2))
  } catch (error) {
    say(error instanceof Error ? error.message : String(error))
    if (error instanceof UsageError) process.stderr.write(usage)
    process.exitCode = error instanceof UsageError ? 2 : error instanceof NoGuestError ? exitNoGuest : 1
  }
}
