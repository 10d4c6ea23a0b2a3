// The lab's command line; scripts/lab.sh builds what is missing and starts it.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { exitNoGuest, NoGuestError } from './errors.js'
import { Guest } from './guest.js'
import { type LabParts, prepareLab } from './lab-parts.js'
import { LocalShell } from './local-shell.js'
import { top } from './paths.js'
import type { Command, ExecOptions, Shell } from './shell.js'

const usage = `usage: npm run lab [-- COMMAND]

  (nothing)              the tests inside one guest, then those that need two
  guest [VITEST OPTION]  only the tests inside one guest
  pair [VITEST OPTION]   only the tests with two guests
  exec SHELL COMMAND     boot one guest and run a command in it
`

const vitest = [process.execPath, 'node_modules/vitest/vitest.mjs', 'run', '--config']
const guestTestsDeadlineMs = 600_000

const say = (line: string): void => console.log(`lab: ${line}`)

/** Runs a command with its output passed on as it comes; its exit status. */
async function live(shell: Shell, command: Command, options: ExecOptions = {}): Promise<number> {
  const onOutput: ExecOptions['onOutput'] = (text, stream) => process[stream].write(text)
  return (await shell.exec(command, { ...options, onOutput })).status ?? 1
}

async function bootForTests(parts: LabParts): Promise<Guest> {
  const guest = await Guest.boot(parts, { diskMiB: 512 })
  say(`a guest is up after ${guest.bootSeconds.toFixed(1)} s (${parts.accelerator})`)
  await guest.run(
    'sh test/lab/guest/rxe.sh veth 10.77.0.1 && sh test/lab/guest/nbd.sh && sh test/lab/guest/disk.sh',
  )
  return guest
}

async function testInGuest(parts: LabParts, options: readonly string[]): Promise<number> {
  await using guest = await bootForTests(parts)
  const command = [...vitest, 'test/lab/vitest.config.ts', ...options]
  const status = await live(guest, command, { env: { CI: '1' }, deadlineMs: guestTestsDeadlineMs })
  const results = await guest.exec(['cat', '/run/rdmakit-lab-results.json'])
  mkdirSync(join(top, 'test-results'), { recursive: true })
  if (results.status === 0) writeFileSync(join(top, 'test-results', 'lab-guest.json'), results.stdout)
  if (status !== 0) say(`the guest's kernel said last:\n${await guest.run('dmesg | tail -n 30')}`)
  return status
}

async function testWithTwo(options: readonly string[]): Promise<number> {
  const command = [...vitest, 'test/lab/vitest.pair.config.ts', ...options]
  return await live(new LocalShell(), command, { env: { CI: '1' }, deadlineMs: guestTestsDeadlineMs })
}

async function main([command, ...rest]: readonly string[]): Promise<number> {
  if (command !== undefined && !['guest', 'pair', 'exec'].includes(command)) {
    process.stderr.write(usage)
    return 2
  }
  const parts = await prepareLab(say)
  if (command === 'exec') {
    await using guest = await bootForTests(parts)
    return await live(guest, rest.join(' '), { deadlineMs: guestTestsDeadlineMs })
  }
  const inGuest = command === 'pair' ? 0 : await testInGuest(parts, rest)
  const withTwo = command === 'guest' ? 0 : await testWithTwo(rest)
  return inGuest === 0 ? withTwo : inGuest
}

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  say(error instanceof Error ? error.message : String(error))
  process.exitCode = error instanceof NoGuestError ? exitNoGuest : 1
}
