// Runs a target in TypeScript under libFuzzer: node control_host.js PROGRAM [ARGUMENT…], where PROGRAM is the
// script that scripts/fuzz.sh makes for the target TARGET_fuzz; libFuzzer starts it again when it merges.
import { createRequire, register } from 'node:module'
import { basename } from 'node:path'
import { inspect } from 'node:util'

interface LibFuzzer {
  count(counters: Buffer): void
  start(play: (input: Buffer) => void, ...args: string[]): void
  done(failed: boolean): void
}

interface Target {
  fuzz(input: Buffer): Promise<void>
}

const libFuzzer: LibFuzzer = createRequire(import.meta.url)('./libfuzzer_host.node')
Object.assign(globalThis, {
  makeFuzzCounters: (count: number) => {
    const counters = Buffer.alloc(count)
    if (count > 0) libFuzzer.count(counters)
    return counters
  },
})
register('./control_coverage.js', import.meta.url)

const program = process.argv[2] ?? ''
const target: Target = await import(`./${basename(program)}.js`)

async function play(input: Buffer): Promise<void> {
  try {
    await target.fuzz(input)
    libFuzzer.done(false)
  } catch (failure) {
    process.stderr.write(`${inspect(failure)}\n`)
    libFuzzer.done(true)
  }
}

libFuzzer.start((input) => void play(input), program, ...process.argv.slice(3))
