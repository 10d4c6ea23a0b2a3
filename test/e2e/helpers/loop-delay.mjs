// NODE_OPTIONS="--import …/loop-delay.mjs": a process writes how long its event loop stood still at most, in
// milliseconds, to RDMAKIT_LOOP_DELAY, each time that it gets longer.
import { writeFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'

const path = process.env.RDMAKIT_LOOP_DELAY
const STEP_MS = 5
/** the start-up of a process, before it serves clients, is not of interest */
const WARM_UP_MS = 1_000

if (path !== undefined && isMainThread) {
  let longest = 0
  let last = performance.now() + WARM_UP_MS
  setInterval(() => {
    const now = performance.now()
    const late = now - last - STEP_MS
    last = Math.max(last, now)
    if (late <= longest) return
    longest = late
    writeFileSync(path, `${Math.round(longest)}\n`)
  }, STEP_MS).unref()
}
