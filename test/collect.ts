// A set-up of vitest (RDMAKIT_COLLECT=1): V8 collects its whole heap many times a second and after each test, so that what
// JavaScript has let go of is finalized while native code may still be at it, and not at the end of the process.
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach } from 'vitest'

/** A collection takes half as long, or all of it on a machine that is busy. */
const PAUSE_MS = 50

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void
setInterval(collect, PAUSE_MS).unref()
afterEach(() => collect())
