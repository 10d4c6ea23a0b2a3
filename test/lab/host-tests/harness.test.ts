import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { DeadlineError, GuestDiedError } from '../base/errors.js'
import { top } from '../base/paths.js'
import { Guest } from '../machine/guest.js'
import { type LabParts, prepareLab } from '../machine/lab-parts.js'
import { versionFor } from '../machine/modules.js'

/** Only ends a hang: another guest's tests may run beside these. */
const HANG_MS = 60_000

let parts: LabParts
let guest: Guest

beforeAll(async () => {
  parts = await prepareLab()
  guest = await Guest.boot(parts, { name: 'one', cpus: 1, memoryMiB: 512 })
})

afterAll(async () => {
  await guest?.powerOff()
})

test('modules are compiled with the tools of their kernel, or of its newest revision', () => {
  expect(versionFor('6.1.192-2', ['6.1.192-3', '6.1.192-2', '6.1.176-1'])).toBe('6.1.192-2')
  expect(versionFor('6.1.192-2', ['6.1.192-3', '6.1.176-1'])).toBe('6.1.192-3')
  expect(versionFor('6.1.19-2', ['6.1.192-3', '6.1.176-1'])).toBe('6.1.19-2')
  expect(versionFor('6.12.9-1', [])).toBe('6.12.9-1')
})

test("a command's output and exit status come out apart", async () => {
  const result = await guest.exec('echo out; echo err >&2; exit 3')
  expect(result).toEqual({ status: 3, signal: null, stdout: 'out\n', stderr: 'err\n' })
})

// With room for one only the emulator leaves out barriers, and the wire loses wake-ups (../qemu.ts).
test('a guest has the processors that were asked for, and room for one more', async () => {
  const processors = (which: string) => guest.run(['cat', `/sys/devices/system/cpu/${which}`])
  expect(await processors('online')).toBe('0\n')
  expect(await processors('possible')).toBe('0-1\n')
})

test('arguments and environment arrive as they were given', async () => {
  const command = ['sh', '-c', 'printf "[%s]" "$@" "$COLOUR"', 'sh', '', 'two words', "it's"]
  expect(await guest.run(command, { env: { COLOUR: 'grün' } })).toBe("[][two words][it's][grün]")
})

test('a megabyte of output arrives whole', async () => {
  const result = await guest.exec('head -c 1000000 /dev/zero | tr "\\0" x')
  expect(result.stdout).toBe('x'.repeat(1_000_000))
})

test('a program that does not exist ends with 127 and says so', async () => {
  const result = await guest.exec(['no-such-program'])
  expect(result.status).toBe(127)
  expect(result.stderr).toMatch(/no-such-program: No such file/)
})

test('a line of a background process can be awaited, and the process signalled', async () => {
  const running = guest.start("trap 'echo bye; exit 5' TERM; echo ready 7471; while :; do sleep 1; done")
  expect((await running.waitForLine(/^ready (\d+)/, HANG_MS))[1]).toBe('7471')
  expect(await running.stop()).toMatchObject({ status: 5, stdout: 'ready 7471\nbye\n' })
})

test('awaiting a line of a process that ends without it fails at once', async () => {
  const running = guest.start('echo something else; exit 1')
  await expect(running.waitForLine(/^ready/, HANG_MS)).rejects.toThrow(/exit status 1/)
})

test('a command past its deadline is killed with its children, and the guest serves on', async () => {
  await expect(guest.exec('sleep 4711 & wait', { deadlineMs: 500 })).rejects.toThrow(DeadlineError)
  const left = async (): Promise<string> => (await guest.exec(['pgrep', '-f', 'sleep 4711'])).stdout
  await vi.waitFor(async () => expect(await left()).toBe(''), HANG_MS)
})

test('what the guest writes stays in the guest', async () => {
  const file = join(top, 'test', 'lab', 'written-in-a-guest')
  await guest.run(['touch', file])
  expect(existsSync(file)).toBe(false)
})

test('a killed guest fails what still runs in it', async () => {
  const other = await Guest.boot(parts, { name: 'other', cpus: 1, memoryMiB: 512 })
  const running = other.start('echo up; exec sleep 1000')
  await running.waitForLine(/^up/, HANG_MS)
  await other.kill()
  await expect(running.exited).rejects.toThrow(GuestDiedError)
  await expect(other.exec('true')).rejects.toThrow(GuestDiedError)
})

test('a guest that cannot boot says what its kernel said', async () => {
  // An initramfs that holds nothing to run.
  const broken = { ...parts, initramfs: parts.agent }
  await expect(Guest.boot(broken, { name: 'broken', cpus: 1, memoryMiB: 256 })).rejects.toThrow(
    /Kernel panic/,
  )
})

test('QEMU does not outlive a harness that is killed', async () => {
  const harness = spawn(process.execPath, ['test/dist/lab/run.js', 'exec', 'echo up; sleep 1000'], {
    cwd: top,
  })
  let output = ''
  harness.stdout.on('data', (bytes: Buffer) => {
    output += bytes.toString()
  })
  await vi.waitFor(() => expect(output).toMatch(/^up$/m), 2 * HANG_MS)
  const children = readFileSync(`/proc/${harness.pid}/task/${harness.pid}/children`, 'utf8').trim().split(' ')
  const qemu = children.find((pid) => readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('qemu-system'))
  expect(qemu).toBeDefined()
  harness.kill('SIGKILL')
  await once(harness, 'exit')
  await vi.waitFor(() => expect(existsSync(`/proc/${qemu}`)).toBe(false), HANG_MS)
})
