// Preloaded into a program of ours (controlFault() of test/control-fault.ts): SIGUSR2 is a fault in its control code, where
// no caller can catch it, and the program is what is shipped.
import { Server } from 'node:http'
import { getHeapStatistics } from 'node:v8'

const kept = []
const FILLER = Buffer.alloc(500_000, 'x')
const FAULTS = {
  timer: () => {
    throw new Error('a timer has failed')
  },
  rejection: () => void Promise.reject(new Error('a promise has failed')),
  growth: () => {
    const { used_heap_size, heap_size_limit } = getHeapStatistics()
    if (used_heap_size > 0.87 * heap_size_limit) return
    // A string, in which the collector of garbage has nothing to look at: arrays took it seconds on a busy machine.
    kept.push(FILLER.toString('latin1'))
    setImmediate(FAULTS.growth)
  },
  end: () => {
    Server.prototype.close = () => {
      throw new Error('an end has failed')
    }
    process.stderr.write('ends fail\n')
  },
  heap: () => {
    const held = []
    for (;;) held.push(new Array(10_000).fill(held.length))
  },
}

process.on('SIGUSR2', () => setTimeout(FAULTS[process.env.TEST_CONTROL_FAULT], 0))
