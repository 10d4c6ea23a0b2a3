import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it, onTestFinished, vi } from 'vitest'
import { printStatus } from '../src/command-line/watch.js'

// An interval of the watch takes no time.
vi.mock('node:timers/promises', () => ({ setTimeout: () => new Promise((resolve) => setImmediate(resolve)) }))

const MODULE = new URL('../dist/command-line/watch.js', import.meta.url).href
/** of a status: more than a pipe and its reader have room for at once */
const BYTES = 2 ** 22

it('prints all of a large status before the process ends', async () => {
  const script = `import { printStatus } from ${JSON.stringify(MODULE)}
    const take = async () => 'x'.repeat(${BYTES})
    const view = { take, format: (status) => status, judge: () => 0 }
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
  const view = { take: async () => ++taken, format: String, judge: () => 0 }
  const watching = printStatus({ ...view, seconds: 1, json: true })
  await first
  // As many intervals, for none takes time here.
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve))
  expect(taken).toBe(1)
  process.emit('SIGTERM')
  await watching
  expect(write).toHaveBeenCalledTimes(1)
})
