import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it, onTestFinished, vi } from 'vitest'
import { printStatus, type StatusView } from '../src/command-line/watch.js'

// An interval of the watch takes no time.
vi.mock('node:timers/promises', () => ({ setTimeout: () => new Promise((resolve) => setImmediate(resolve)) }))

const MODULE = new URL('../dist/command-line/watch.js', import.meta.url).href
/** of a status: more than a pipe and its reader have room for at once */
const BYTES = 2 ** 22

it('prints all of a large status before the process ends', async () => {
  const script = `import { printStatus } from ${JSON.stringify(MODULE)}
    const take = async () => 'x'.repeat(${BYTES})
    const view = { take, format: (status) => status, nothing: '', judge: () => 0 }
    await printStatus({ ...view, seconds: undefined, json: process.argv[1] === 'json' })
    process.exit()`
  const printed = async (how: string) => {
    const words = ['--input-type=module', '-e', script, how]
    const { stdout } = await promisify(execFile)(process.execPath, words, { maxBuffer: 2 * BYTES })
    return stdout
  }
  expect(await printed('text')).toHaveLength(BYTES)
  expect(JSON.parse(await printed('json'))).toHaveLength(BYTES)
})

it('takes no further status while the last one is unread, and ends at a signal all the same', async () => {
  let taken = 0
  let wrote = () => {}
  const first = new Promise<void>((resolve) => {
    wrote = resolve
  })
  const write = vi.spyOn(process.stdout, 'write').mockImplementation(() => {
    wrote()
    return false
  })
  onTestFinished(() => write.mockRestore())
  const view = { take: async () => ++taken, format: String, nothing: '', judge: () => 0 }
  const watching = printStatus({ ...view, seconds: 1, json: true })
  await first
  // As many intervals, for none takes time here.
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve))
  expect(taken).toBe(1)
  process.emit('SIGTERM')
  await watching
  expect(write).toHaveBeenCalledTimes(1)
})

/** A status of what runs, where something hangs. */
const HANGING: StatusView<string[]> = {
  take: async (unreachable) => {
    unreachable({ message: 'process 7 does not answer', exitStatus: 69 })
    return []
  },
  format: (names) => names.join(''),
  nothing: 'nothing is running',
  judge: () => 80,
}

/** What a status prints to each stream, and the exit status that it leaves; `seconds`: until it has printed twice. */
async function printed(seconds: number | undefined, json: boolean, isTTY = true) {
  const streams = { stdout: '', stderr: '' }
  let looks = 0
  for (const name of ['stdout', 'stderr'] as const) {
    const write = vi.spyOn(process[name], 'write').mockImplementation((text, done?: unknown) => {
      streams[name] += text
      if (name === 'stdout' && seconds !== undefined && ++looks === 2) process.emit('SIGTERM')
      if (typeof done === 'function') done()
      return true
    })
    onTestFinished(() => write.mockRestore())
  }
  const terminal = process.stdout.isTTY
  process.stdout.isTTY = isTTY
  await printStatus({ ...HANGING, seconds, json }).finally(() => {
    process.stdout.isTTY = terminal
  })
  const { exitCode } = process
  process.exitCode = undefined
  return { ...streams, exitCode }
}

it('says of a watched program that hangs where a terminal shows it, and ends with 0 all the same', async () => {
  const screen = '\x1b[H\x1b[2Jprocess 7 does not answer\n\n'
  expect(await printed(1, false)).toEqual({ stdout: screen + screen, stderr: '', exitCode: undefined })
  const line = 'process 7 does not answer\n'
  expect(await printed(1, true)).toEqual({ stdout: '[]\n[]\n', stderr: line + line, exitCode: undefined })
})

it('says once of a program that hangs on stderr, and ends with its status', async () => {
  const line = 'process 7 does not answer\n'
  expect(await printed(undefined, false)).toEqual({ stdout: '', stderr: line, exitCode: 69 })
  expect(await printed(undefined, true)).toEqual({ stdout: '[]\n', stderr: line, exitCode: 69 })
})
