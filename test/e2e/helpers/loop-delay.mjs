// NODE_OPTIONS="--import …/loop-delay.mjs": a process writes how long its event loop stood still at most to
// RDMAKIT_LOOP_DELAY, each time that it gets longer, in milliseconds: in all, computing, and asleep, in a lock say. The
// rest of the time others had the processors.
import { openSync, readSync, writeFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'

const path = process.env.RDMAKIT_LOOP_DELAY
const STEP_MS = 5
/** The start-up of a process, before it serves clients, is not of interest: so long from the loop's first turn on. */
const WARM_UP_MS = 1_000

/** @returns how long this thread has had a processor, and has waited for one, until now (proc_pid_schedstat(5)) */
function processorTimes() {
  const file = openSync(`/proc/self/task/${process.pid}/schedstat`, 'r')
  const bytes = Buffer.alloc(64)
  return () => {
    const [had, waited] = bytes.latin1Slice(0, readSync(file, bytes, 0, bytes.length, 0)).split(' ')
    return { had: Number(had) / 1e6, waited: Number(waited) / 1e6 }
  }
}

if (path !== undefined && isMainThread) {
  const longest = { all: 0, computing: 0, asleep: 0 }
  const times = processorTimes()
  let begin = Number.POSITIVE_INFINITY
  let last = { at: 0, had: 0, waited: 0 }
  setInterval(() => {
    const now = { at: performance.now(), ...times() }
    if (last.at === 0) begin = now.at + WARM_UP_MS
    if (now.at < begin) {
      last = now
      return
    }
    const all = now.at - last.at - STEP_MS
    const computing = now.had - last.had
    const asleep = all - computing - (now.waited - last.waited)
    last = now
    if (all <= longest.all && computing <= longest.computing && asleep <= longest.asleep) return
    longest.all = Math.max(longest.all, all)
    longest.computing = Math.max(longest.computing, computing)
    longest.asleep = Math.max(longest.asleep, asleep)
    writeFileSync(path, `${Object.values(longest).map(Math.round).join(' ')}\n`)
  }, STEP_MS).unref()
}
