// Whether this machine has anything else to do: a part that took too long on a busy one says nothing about the part.
import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'

/** How long every processor is kept busy to see whether other processes wait for one. */
const PROBE_MS = 250
/** The fraction of that time that others may wait on a machine that counts as idle. */
const IDLE_SHARE = 0.15

/** Microseconds in which at least one task that could run waited for a processor (Documentation/accounting/psi.rst). */
function waitedUs() {
  const [, total] = /^some .* total=(\d+)/m.exec(readFileSync('/proc/pressure/cpu', 'utf8'))
  return Number(total)
}

const spin = `
  const { parentPort, workerData } = require('node:worker_threads')
  parentPort.once('message', () => {
    const end = performance.now() + workerData
    while (performance.now() < end);
    parentPort.postMessage('done')
  })
  parentPort.postMessage('ready')`

const said = (worker) => new Promise((resolve) => worker.once('message', resolve))

/**
 * Keeps each processor busy with one thread for a quarter of a second and asks the kernel whether any task waited
 * meanwhile. On an idle machine none does; another process that wants a processor shares it with a thread of ours.
 * @returns {Promise<boolean | undefined>} undefined where the kernel does not tell
 */
export async function machineIsIdle() {
  try {
    waitedUs()
  } catch {
    return undefined
  }
  const workers = Array.from(
    { length: availableParallelism() },
    () => new Worker(spin, { eval: true, workerData: PROBE_MS }),
  )
  await Promise.all(workers.map(said))
  const before = waitedUs()
  const done = workers.map(said)
  for (const worker of workers) worker.postMessage('go')
  await Promise.all(done)
  const share = (waitedUs() - before) / 1000 / PROBE_MS
  await Promise.all(workers.map((worker) => worker.terminate()))
  return share < IDLE_SHARE
}
