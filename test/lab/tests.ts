// The tests of the lab: inside one guest, and on the host those of the harness itself.
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { LocalShell } from './base/local-shell.js'
import { top } from './base/paths.js'
import type { Command, ExecOptions, Shell } from './base/shell.js'
import type { LabParts } from './machine/lab-parts.js'
import { buildDeviceTest, buildSanitizedDeviceTests } from './machine/native.js'
import { TestGuest } from './machine/test-guest.js'

// Without the tiers of WebAssembly: under QEMU 7.2's emulation the count-down to the next tier, in the module lexer, now and
// then went on in the middle of an instruction, and vitest ended by SIGSEGV (9 of 20 boots; none of 10 since).
const vitest = [
  ...[process.execPath, '--no-wasm-dynamic-tiering', '--no-wasm-tier-up'],
  ...['node_modules/vitest/vitest.mjs', 'run', '--config'],
]
// Colours and redrawn lines are for terminals.
const environment = {
  CI: '1',
  RDMAKIT_EFFORT: process.env.RDMAKIT_EFFORT ?? '1',
  RDMAKIT_TIER: process.env.RDMAKIT_TIER ?? '',
  ...(!process.stdout.isTTY && { NO_COLOR: '1' }),
}
/** A soak repeats much, on a machine that may do much else. */
const deadlineMs = 7_200_000

export type Say = (line: string) => void

/** What vitest.config.ts calls projects. */
export type Project = 'drivers' | 'device' | 'network' | 'swap' | 'rxe' | 'siw'

export interface GuestTests {
  projects: readonly Project[]
  /** vitest's own words: parts of file names, -t and what a test's name holds, --project and one of all projects */
  filter?: readonly string[]
  /** a file of test-results/ */
  report: string
}

/** Runs a command with its output passed on as it comes; its exit status. */
export async function live(shell: Shell, command: Command, options: ExecOptions = {}): Promise<number> {
  const onOutput: ExecOptions['onOutput'] = (text, stream) => process[stream].write(text)
  const { status, signal } = await shell.exec(command, { deadlineMs, ...options, onOutput })
  if (status === null) process.stderr.write(`it was ended by signal ${signal}\n`)
  return status ?? 1
}

/** @returns vitest's exit status */
export async function testInGuest(parts: LabParts, tests: GuestTests, say: Say): Promise<number> {
  const { projects, filter = [], report } = tests
  const file = join(top, 'test-results', report)
  // A run that breaks off must not leave the results of an earlier one to be counted as its own.
  rmSync(file, { force: true })
  const hasProject = filter.includes('--project')
  const runs = (name: string) =>
    hasProject || filter.length === 0 || filter.some((word) => name.includes(word))
  if (projects.includes('drivers') && runs('verbs')) await buildDeviceTest()
  if (projects.includes('device') && runs('device-stress')) await buildSanitizedDeviceTests()
  await using booted = await TestGuest.boot(parts)
  const { guest } = booted
  say(`a guest and its peer are up after ${guest.bootSeconds.toFixed(1)} s (${parts.accelerator})`)
  // Vitest runs what any of them names.
  const chosen = hasProject ? [] : projects.flatMap((project) => ['--project', project])
  const command = [...vitest, 'test/lab/vitest.config.ts', ...chosen, ...filter]
  const status = await live(guest, command, { env: environment })
  const results = await guest.exec(['cat', '/run/rdmakit-lab-results.json'])
  mkdirSync(join(top, 'test-results'), { recursive: true })
  if (results.status === 0) writeFileSync(file, results.stdout)
  if (status !== 0)
    say(
      `vitest ended with status ${status}; the guest's kernel said last:\n${await guest.run('dmesg | tail -n 30')}`,
    )
  return status
}

export async function testHarness(filter: readonly string[]): Promise<number> {
  const command = [...vitest, 'test/lab/vitest.host.config.ts', ...filter]
  return await live(new LocalShell(), command, { env: environment })
}

/** Prints how many tests each project passed, and what each provider does not support. */
export async function count(reports: readonly string[]): Promise<number> {
  const files = reports.map((report) => join('test-results', report))
  return await live(new LocalShell(), [process.execPath, 'scripts/reports/count-tests.mjs', ...files])
}
