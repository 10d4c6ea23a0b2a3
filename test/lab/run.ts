// The lab's command line; scripts/lab.sh builds what is missing and starts it.
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { guestDemo } from './demo.js'
import { deviceStressCommand } from './device-stress.js'
import { exitNoGuest, NoGuestError } from './errors.js'
import { Guest } from './guest.js'
import { killAnythingCommand } from './kill-anything.js'
import { type LabParts, prepareLab } from './lab-parts.js'
import { LocalShell } from './local-shell.js'
import { memoryStormCommand } from './memory-storm.js'
import { buildDeviceTest } from './native.js'
import { top } from './paths.js'
import { restartStormCommand } from './restart-storm.js'
import { ringBench } from './ring-bench.js'
import type { Command, ExecOptions, Shell } from './shell.js'
import { type SwapBenchOptions, swapBench } from './swap-bench.js'
import { systemdCommand } from './systemd.js'
import { verbsBench } from './verbs-bench.js'

const usage = `usage: npm run lab [-- COMMAND]

  (nothing)              the tests inside one guest, then those on the host
  guest [VITEST OPTION]  only the tests inside one guest
  host [VITEST OPTION]   only those on the host: the harness itself, and two guests on one wire
  bench [verbs|ring|swap]
                         verbs on a guest's devices, beside perftest; the ring over rxe, beside sockets and
                         perftest; swap between two guests, beside iSER, NVMe-oF and nbdkit. All by default
        swap [--rounds N] [--mebibytes N] [--guests N] [--cpus N] [--json]
                         how often each, 3 by default; the array's size, 256 by default; server and client in
                         1 guest or in 2, the default; the processors of each, 1 by default; JSON, no table
  exec SHELL COMMAND     boot one guest and run a command in it
  memory-storm [--seconds N] [--ublk]
                         a guest without memory to spare, swapping to another for 300 s by default; --ublk:
                         over a device of ublk, not nbd, here and below
  restart-storm [--restarts N] [--ublk]
                         the same guest, whose nbd-client is killed and started again, 3 times by default
  kill-anything [--seconds N | --faults N] [--seed N] [--servers N] [--replicas N] [--backup] [--ublk]
                         a guest that swaps to others while one thing after another is killed, for 300 s, with
                         2 server guests and 2 replicas, by default; --backup: a copy on its own disk too
  device-stress          the block engine on a device of ublk, with each set of sanitizers, in a guest
  systemd                the services of examples/two-hosts under systemd, on two guests
  demo                   remote swap between two guests, against local memory and a local disk
`

type Benchmark = (parts: LabParts, print: (line: string) => void, options: SwapBenchOptions) => Promise<void>
const benchmarks: Readonly<Record<string, Benchmark>> = {
  verbs: verbsBench,
  ring: ringBench,
  swap: swapBench,
}

const vitest = [process.execPath, 'node_modules/vitest/vitest.mjs', 'run', '--config']
// Colours and redrawn lines are for terminals.
const vitestEnvironment = { CI: '1', ...(!process.stdout.isTTY && { NO_COLOR: '1' }) }
const guestTestsDeadlineMs = 1_800_000 // a machine that does much else

const resultsFolder = join(top, 'test-results')

// With --json, stdout is for a program to read.
const say = (line: string): void => console[process.argv.includes('--json') ? 'error' : 'log'](`lab: ${line}`)

/** Runs a command with its output passed on as it comes; its exit status. */
async function live(shell: Shell, command: Command, options: ExecOptions = {}): Promise<number> {
  const onOutput: ExecOptions['onOutput'] = (text, stream) => process[stream].write(text)
  return (await shell.exec(command, { ...options, onOutput })).status ?? 1
}

async function bootForTests(parts: LabParts): Promise<Guest> {
  const guest = await Guest.boot(parts, { diskMiB: 512 })
  say(`a guest is up after ${guest.bootSeconds.toFixed(1)} s (${parts.accelerator})`)
  const scripts = [
    'rxe.sh veth 10.77.0.1',
    `siw.sh '${parts.modules.siw}'`,
    'nbd.sh',
    `ublk.sh '${parts.modules.ublk}'`,
    'disk.sh',
  ]
  await guest.run(scripts.map((script) => `sh test/lab/guest/${script}`).join(' && '))
  return guest
}

async function testInGuest(parts: LabParts, options: readonly string[]): Promise<number> {
  await buildDeviceTest()
  await using guest = await bootForTests(parts)
  const command = [...vitest, 'test/lab/vitest.config.ts', ...options]
  const status = await live(guest, command, { env: vitestEnvironment, deadlineMs: guestTestsDeadlineMs })
  const results = await guest.exec(['cat', '/run/rdmakit-lab-results.json'])
  mkdirSync(resultsFolder, { recursive: true })
  if (results.status === 0) writeFileSync(join(resultsFolder, 'lab-guest.json'), results.stdout)
  if (status !== 0) say(`the guest's kernel said last:\n${await guest.run('dmesg | tail -n 30')}`)
  return status
}

async function testOnHost(options: readonly string[]): Promise<number> {
  const command = [...vitest, 'test/lab/vitest.host.config.ts', ...options]
  return await live(new LocalShell(), command, { env: vitestEnvironment, deadlineMs: guestTestsDeadlineMs })
}

/** One benchmark, or all of them one after the other. */
async function bench(parts: LabParts, rest: readonly string[]): Promise<number> {
  const [first] = rest
  const only = first?.startsWith('--') ? undefined : first
  const chosen = Object.entries(benchmarks).filter(([name]) => only === undefined || only === name)
  if (chosen.length === 0) {
    process.stderr.write(usage)
    return 2
  }
  const numbers = rest.filter((word) => word !== only && word !== '--json')
  const options = {
    ...numbersOf(numbers, { rounds: 3, mebibytes: 256, guests: 2, cpus: 1 }),
    json: rest.includes('--json'),
  }
  for (const [, benchmark] of chosen) await benchmark(parts, say, options)
  return 0
}

async function main([command, ...rest]: readonly string[]): Promise<number> {
  if (
    command !== undefined &&
    ![
      'guest',
      'host',
      'exec',
      'demo',
      'bench',
      'memory-storm',
      'restart-storm',
      'kill-anything',
      'device-stress',
      'systemd',
    ].includes(command)
  ) {
    process.stderr.write(usage)
    return 2
  }
  if (command === 'demo') {
    await guestDemo()
    return 0
  }
  const parts = await prepareLab(say)
  const ublk = rest.includes('--ublk')
  if (command === 'bench') {
    return await bench(parts, rest)
  }
  if (command === 'memory-storm') {
    const { seconds } = numbersOf(
      rest.filter((word) => word !== '--ublk'),
      { seconds: 300 },
    )
    return await memoryStormCommand(parts, { seconds, ublk }, say)
  }
  if (command === 'restart-storm') {
    const { restarts } = numbersOf(
      rest.filter((word) => word !== '--ublk'),
      { restarts: 3 },
    )
    return await restartStormCommand(parts, { restarts, ublk }, say)
  }
  if (command === 'device-stress') return await deviceStressCommand(parts, say)
  if (command === 'systemd') return await systemdCommand(parts, say)
  if (command === 'kill-anything') {
    const numbers = rest.filter((word) => word !== '--backup' && word !== '--ublk')
    const defaults = { seconds: 300, faults: 0, seed: Date.now() % 2 ** 32, servers: 2, replicas: 2 }
    const options = { ...numbersOf(numbers, defaults), backup: rest.includes('--backup'), ublk }
    return await killAnythingCommand(parts, options, say)
  }
  if (command === 'exec') {
    await using guest = await bootForTests(parts)
    return await live(guest, rest.join(' '), { deadlineMs: guestTestsDeadlineMs })
  }
  const reports = ['lab-guest.json', 'lab-host.json'].map((name) => join(resultsFolder, name))
  // A run that breaks off must not leave the results of an earlier one to be counted as its own.
  for (const report of reports) rmSync(report, { force: true })
  const inGuest = command === 'host' ? 0 : await testInGuest(parts, rest)
  const onHost = command === 'guest' ? 0 : await testOnHost(rest)
  // vitest's options choose tests, and a test that was not chosen is no failure.
  const counted = rest.length === 0 ? await count(reports.filter((report) => existsSync(report))) : 0
  return inGuest || onHost || counted
}

/** Options with whole numbers from 1 on, each with its default. */
function numbersOf<T extends Record<string, number>>(rest: readonly string[], defaults: T): T {
  const options = Object.fromEntries(Object.keys(defaults).map((name) => [name, { type: 'string' as const }]))
  const given = Object.entries(parseArgs({ args: [...rest], options }).values)
  const numbers = given.map(([name, value]) => [name, Number(value)] as const)
  for (const [name, number] of numbers)
    if (!Number.isSafeInteger(number) || number < 1) throw new Error(`--${name} is a whole number from 1 on`)
  return { ...defaults, ...Object.fromEntries(numbers) }
}

/** Prints how many tests each project passed, and what each provider does not support. */
async function count(reports: readonly string[]): Promise<number> {
  return await live(new LocalShell(), [process.execPath, 'scripts/count-tests.mjs', ...reports])
}

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  say(error instanceof Error ? error.message : String(error))
  process.exitCode = error instanceof NoGuestError ? exitNoGuest : 1
}
