// One case, in a process of its own: node run.js NAME MILLISECONDS FOLDER, which is for sockets. Prints the median of an
// operation's time.
import { Bench } from 'tinybench'
import { CASES } from './cases.js'

const [name, milliseconds, folder] = process.argv.slice(2)
const one = CASES.find((known) => known.name === name)
if (one === undefined) throw new Error(`no case is called "${name}"`)
if (folder === undefined) throw new Error('no folder is named')

const { run, end } = await one.start(folder)
// `throws`: a case that fails is no figure.
const bench = new Bench({ time: Number(milliseconds), warmupTime: Number(milliseconds) / 4, throws: true })
await bench.add(one.name, run).run()
const result = bench.tasks[0]?.result
if (result === undefined || !('latency' in result)) throw new Error('nothing was measured')
console.log(JSON.stringify({ nanosecondsEach: (1e6 * result.latency.p50) / one.batch }))
await end()
process.exit(0)
