import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'

const program = join(import.meta.dirname, 'idle-gc-process.mjs')
const DEADLINE_MS = 50_000
const top = join(import.meta.dirname, '../../..')

/** What the first line of a program gives to Node. */
const flagsOf = (name: string) =>
  /^#!\/usr\/bin\/env -S node(.*)\n/
    .exec(readFileSync(join(top, 'packages', name, 'dist/cli.js'), 'utf8'))?.[1]
    ?.trim()
    .split(' ') ?? []

/** Collections are reported for the whole process, so it is another one. */
async function run(flags: readonly string[], ...words: string[]) {
  const { stdout } = await promisify(execFile)(process.execPath, [...flags, program, ...words], {
    timeout: DEADLINE_MS,
  })
  return JSON.parse(stdout) as { before: number; after: number; inSteps: boolean }
}

describe('a heap that has been settled', () => {
  it.each(['swap-server', 'nbd-client'])(
    'has none of what starting has left, and is collected at once when it has grown: %s',
    async (name) => {
      const { before, after, inSteps } = await run(flagsOf(name), 'settled')
      expect(after).toBeLessThan(before / 2)
      expect(inSteps).toBe(false)
    },
  )

  it('would else be marked in steps, as V8 does when nothing happens', async () => {
    const { before, after, inSteps } = await run([])
    expect(after).toBeGreaterThan(before / 2)
    expect(inSteps).toBe(true)
  })
})
