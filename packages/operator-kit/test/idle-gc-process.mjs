// A process whose heap grows: idle-gc-process.mjs [settled]. Prints what it has when it has started, and which kinds
// of collections were made until the first of all of the heap (perf_hooks, PerformanceNodeEntry).
import { constants, PerformanceObserver } from 'node:perf_hooks'
import { setImmediate } from 'node:timers/promises'
import { disableIdleGc } from '../dist/process/idle-gc.js'

const MOST_BYTES = 512 * 1024 * 1024

/** As a start does. */
const garbage = () => Array.from({ length: 300_000 }, (_, i) => ({ i, text: `object ${i}` })).length
garbage()
const before = process.memoryUsage().heapUsed
if (process.argv[2] === 'settled') disableIdleGc()
const after = process.memoryUsage().heapUsed

const kinds = new Set()
new PerformanceObserver((list) => {
  for (const { detail } of list.getEntries()) kinds.add(detail.kind)
}).observe({ entryTypes: ['gc'] })
// Collections from above are still to be reported.
await setImmediate()
kinds.clear()

const kept = []
while (!kinds.has(constants.NODE_PERFORMANCE_GC_MAJOR)) {
  if (process.memoryUsage().heapUsed > MOST_BYTES) throw new Error('nothing was collected')
  for (let i = 0; i < 10_000; i++) kept.push({ i, text: `kept ${i}` })
  await setImmediate()
}
const inSteps = kinds.has(constants.NODE_PERFORMANCE_GC_INCREMENTAL)
process.stdout.write(JSON.stringify({ before, after, inSteps, kept: kept.length }))
