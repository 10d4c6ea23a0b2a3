// Costs a tenth of a second.
import { once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { expect, it } from 'vitest'
import { standStill } from '../../../test/stand-still.js'
import { within } from '../src/base/deferred.js'

it('what came in time counts, also where this thread looks too late', async () => {
  const source = `
    const { parentPort, workerData } = require('node:worker_threads')
    parentPort.once('message', () => {
      parentPort.postMessage('here')
      Atomics.store(workerData, 0, 1)
      Atomics.notify(workerData, 0)
    })`
  const said = new Int32Array(new SharedArrayBuffer(4))
  const worker = new Worker(source, { eval: true, workerData: said })
  await once(worker, 'online')
  // Timers are what runs next.
  await setImmediate()
  const answer = within(once(worker, 'message'), 20, () => new Error('late'))
  worker.postMessage('go')
  expect(Atomics.wait(said, 0, 0, 100_000)).not.toBe('timed-out')
  standStill(40)
  expect(await answer).toEqual(['here'])
})

it('what never comes is late', async () => {
  await expect(within(new Promise(() => {}), 20, () => new Error('late'))).rejects.toThrow('late')
})
