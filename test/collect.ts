// A set-up of vitest (RDMAKIT_COLLECT=1): V8 collects its whole heap many times a second and after each test, so that what
// JavaScript has let go of is finalized while native code may still be at it, and not at the end of the process.
import { setTimeout } from 'node:timers' // also where a test sets globals to clocks of its own
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach } from 'vitest'

/** A collection takes half as long. */
const PAUSE_MS = 50
/** Of the time, on a machine that is busy: else nothing but collections would be left of it, and what is awaited times out. */
const SHARE = 1 / 4

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void
function collectAgain() {
  const start = performance.now()
  collect()
  const took = performance.now() - start
  setTimeout(collectAgain, Math.max(PAUSE_MS, took * (1 / SHARE - 1))).unref()
}
collectAgain()
afterEach(() => collect())
