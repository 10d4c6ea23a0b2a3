// Pushes gradients and pulls weights; starts the other workers too.
// node examples/dist/parameter-server/worker.js [uri] [workers] [iterations]
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { PARAMETERS, SLICES } from './model.js'
import { check, fillGradient } from './training.js'
import { transportOf } from './transports.js'

const [uri = 'shm:///tmp/rdmakit-parameters.sock', workersText = '2', iterationsText = '10', own = '0'] =
  process.argv.slice(2)
const [workers, iterations, worker] = [workersText, iterationsText, own].map(Number) as [
  number,
  number,
  number,
]

/** Workers 1, 2, …: processes like this one. It is worker 0. */
const others = Array.from({ length: worker === 0 ? workers - 1 : 0 }, (_, i) =>
  spawn(process.execPath, [process.argv[1] as string, uri, workersText, iterationsText, String(i + 1)], {
    stdio: ['ignore', 'ignore', 'inherit'],
  }),
)

let missing = 0
let resolveAll = () => {}
let rejectAll: (reason: Error) => void = () => {}
const weights = new Float32Array(PARAMETERS)
const server = await transportOf(uri).connect(
  uri,
  weights,
  () => {
    if (--missing === 0) resolveAll()
  },
  (reason) => rejectAll(reason),
)

for (let iteration = 0; iteration < iterations; iteration++) {
  const begin = performance.now()
  missing = SLICES.length
  const all = new Promise<void>((resolve, reject) => {
    resolveAll = resolve
    rejectAll = reject
  })
  for (let slice = 0; slice < SLICES.length; slice++) {
    const full = server.push(slice, (gradient) => fillGradient(gradient, worker, iteration, slice))
    if (full !== undefined) await full
  }
  await all
  console.log(`iteration ${iteration}: ${(performance.now() - begin).toFixed(1)} ms`)
}
check(weights, workers, iterations)
console.log(`all ${PARAMETERS} weights are what ${iterations} iterations of ${workers} workers make them`)
await server.close()
for (const other of others) {
  const [status] = other.exitCode === null ? await once(other, 'exit') : [other.exitCode]
  if (status !== 0) throw new Error(`another worker ended with ${status}`)
}
