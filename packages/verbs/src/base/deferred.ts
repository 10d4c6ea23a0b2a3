import { onAbort } from './abort.js'
import { clearImmediate, clearTimeout, performance, setImmediate, setTimeout } from './clock.js'
import { UsageError } from './errors.js'

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

/** @internal the longest that a timer runs, 25 days; Node takes what is longer for 1 ms */
export const LONGEST_MS = 2 ** 31 - 1

/**
 * @internal `value`, if it is a time that can be waited for: milliseconds above 0 to {@link LONGEST_MS}, which
 * is what Infinity counts as
 */
export function milliseconds(name: string, value: number): number {
  if (value === Number.POSITIVE_INFINITY) return LONGEST_MS
  if (typeof value === 'number' && value > 0 && value <= LONGEST_MS) return value
  throw new UsageError(`${name} must be milliseconds above 0, at most 2^31 − 1, or Infinity, not ${value}`)
}

/** @internal as {@link milliseconds}; 0 is none */
export const millisecondsOrNone = (name: string, value: number): number =>
  value === 0 ? 0 : milliseconds(name, value)

/** @internal the milliseconds that are left of `timeoutMs` from now on, whenever it is called */
export function countdown(timeoutMs: number): () => number {
  const end = performance.now() + timeoutMs
  return () => end - performance.now()
}

const LATE = Symbol('late')

/**
 * Waits for `promise` at most `timeoutMs` (see {@link milliseconds}), less when `signal` aborts. The losing promise is not
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
