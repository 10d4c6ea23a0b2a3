// Sums the gradients of all workers, slice by slice, and gives every worker the new weights.
// node examples/dist/parameter-server/server.js [uri] [workers]
import { part, SLICES, sliceOf } from './model.js'
import { Trainer } from './training.js'
import type { ToWorker } from './transport.js'
import { transportOf } from './transports.js'

const [uri = 'shm:///tmp/rdmakit-parameters.sock', count = '2'] = process.argv.slice(2)
const trainer = new Trainer(Number(count))
const workers = new Set<ToWorker>()
let updates = 0
let finish = () => {}
const finished = new Promise<void>((resolve) => {
  finish = resolve
})

const listening = await transportOf(uri).listen(uri, {
  joined: (worker) => workers.add(worker),
  pushed(slice, gradient) {
    if (!trainer.add(slice, gradient)) return
    updates++
    const weights = part(trainer.weights, sliceOf(slice))
    for (const worker of workers) worker.pull(slice, weights)
  },
  left(worker) {
    workers.delete(worker)
    if (workers.size === 0) finish()
  },
})
console.log(`listening ${listening.uri}`)
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, finish)
await finished
await listening.close()
console.log(`${updates / SLICES.length} iterations`)
