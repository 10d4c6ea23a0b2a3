import { clearImmediate, clearTimeout, setImmediate, setTimeout } from 'node:timers'
import { onAbort } from './abort.js'

/** A promise and the functions that settle it (`Promise.withResolvers` of Node 22). */
export interface Deferred<T> {
  /** what is settled */
  readonly promise: Promise<T>
  /** fulfils it */
  readonly resolve: (value: T) => void
  /** rejects it */
  readonly reject: (reason: unknown) => void
}

/** A promise with its ends outside. */
export function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void
  let reject!: (reason: unknown) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  return { promise, resolve, reject }
}

const LATE = Symbol('late')

/**
 * Waits for `promise` at most `timeoutMs`, less when `signal` aborts. The losing promise is not
 * left unhandled. What was there when the time was up counts, also if this thread stood still until later (it was
 * stopped, or computed): timers run before what has come from outside, so that has a turn of the event loop first.
 */
export async function within<T>(
  promise: Promise<T>,
  timeoutMs: number,
  expired: () => unknown,
  signal?: AbortSignal,
): Promise<T> {
  const end = deferred<typeof LATE>()
  // The timer that is imported is the real one, also where a test has put a false one in the place of the global.
  let turn: NodeJS.Immediate | undefined
  const timer = setTimeout(() => {
    turn = setImmediate(() => end.resolve(LATE))
  }, timeoutMs)
  const stop = onAbort(signal, () => end.reject(signal?.reason))
  promise.catch(() => {})
  try {
    signal?.throwIfAborted()
    const first = await Promise.race([promise, end.promise])
    // Created here and not in the timer: its stack shows the caller.
    if (first === LATE) throw expired()
    return first
  } finally {
    clearTimeout(timer)
    clearImmediate(turn)
    stop()
  }
}
