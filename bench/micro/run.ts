// One case, in a process of its own: node run.js NAME MILLISECONDS. Prints the median of an operation's time.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Bench } from 'tinybench'
import { CASES } from './cases.js'

const [name, milliseconds] = process.argv.slice(2)
const one = CASES.find((known) => known.name === name)
if (one === undefined) throw new Error(`no case is called "${name}"`)

const folder = mkdtempSync(join(tmpdir(), 'rdmakit-micro-'))
try {
  const { run, end } = await one.start(folder)
  // `throws`: a case that fails is no figure.
  const bench = new Bench({ time: Number(milliseconds), warmupTime: Number(milliseconds) / 4, throws: true })
  await bench.add(one.name, run).run()
  const result = bench.tasks[0]?.result
  if (result === undefined || !('latency' in result)) throw new Error('nothing was measured')
  console.log(JSON.stringify({ nanosecondsEach: (1e6 * result.latency.p50) / one.batch }))
  await end()
} finally {
  rmSync(folder, { recursive: true, force: true })
}
process.exit(0)
