// Benchmarks in guests: ours beside perftest, sockets, iSER, NVMe-oF and nbdkit.
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { NoGuestError, UsageError } from '../base/errors.js'
import { LocalShell } from '../base/local-shell.js'
import { textsOf, wholeNumbers } from '../base/numbers.js'
import { makeWorkFolder } from '../base/work-folder.js'
import type { LabParts } from '../machine/lab-parts.js'
import { live, type Say } from '../tests.js'
import { type Report, report } from './perftest.js'
import { ringBench } from './ring-bench.js'
import { type SwapBenchOptions, swapBench } from './swap-bench.js'
import { verbsBench } from './verbs-bench.js'

type Benchmark = (parts: LabParts, print: Say, options: SwapBenchOptions) => Promise<Report>
const benchmarks: Readonly<Record<string, Benchmark>> = {
  verbs: verbsBench,
  ring: ringBench,
  swap: swapBench,
}

/** Some benchmarks, or all of them one after the other, judged together at the end. */
export async function benchCommand(parts: LabParts, rest: readonly string[], say: Say): Promise<number> {
  const defaults = { rounds: 5, mebibytes: 256, guests: 2, cpus: 1 }
  const { positionals, values } = parseArgs({
    args: [...rest],
    allowPositionals: true,
    // --reports FILE is for npm run bench, which judges what it finds there.
    options: { ...textsOf(defaults), json: { type: 'boolean' }, reports: { type: 'string' } },
  })
  if (positionals.some((name) => !Object.hasOwn(benchmarks, name))) {
    throw new UsageError(`benchmarks: ${Object.keys(benchmarks).join(', ')}`)
  }
  const { json, reports: kept, ...numbers } = values
  const options = wholeNumbers(numbers, defaults)
  // It has the judge, and what the ring's benchmark runs in the guest.
  await new LocalShell().run(['node_modules/.bin/tsc', '-b', 'bench'], { deadlineMs: 300_000 })
  const reports: Report[] = []
  for (const [name, benchmark] of Object.entries(benchmarks)) {
    if (positionals.length > 0 && !positionals.includes(name)) continue
    reports.push(
      await benchmark(parts, say, options).catch((error) => {
        if (error instanceof NoGuestError || !(error instanceof Error)) throw error
        const [suite, failures] = [`lab ${name}`, [error.message]]
        return report({ suite, about: 'in guests', rounds: options.rounds, failures })
      }),
    )
  }
  if (kept === undefined) return await judge(reports, json === true)
  writeFileSync(kept, JSON.stringify(reports))
  return 0
}

/** Prints them. @returns the exit status, which is 1 when a limit is missed by more than the spread */
async function judge(reports: readonly Report[], json: boolean): Promise<number> {
  const folder = await makeWorkFolder('bench')
  try {
    const file = join(folder, 'reports.json')
    writeFileSync(file, JSON.stringify(reports))
    const command = [process.execPath, 'bench/dist/judge.js', file, ...(json ? ['--json'] : [])]
    return await live(new LocalShell(), command)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
