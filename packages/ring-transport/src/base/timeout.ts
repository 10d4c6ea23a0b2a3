import { UsageError } from '@rdmakit/verbs'
import { performance } from './clock.js'

/** @internal milliseconds that a step, or a request, may take when nobody says otherwise */
export const DEFAULT_TIMEOUT_MS = 5_000
/** @internal the same of a message of any length */
export const TRANSMIT_TIMEOUT_MS = 60_000
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

/** @internal when a time that can be waited for is over, of performance.now() */
export function deadlineAfter(name: string, value = DEFAULT_TIMEOUT_MS): number {
  return performance.now() + milliseconds(name, value)
}

/** @internal milliseconds until `deadline`, of performance.now(), as a timer takes them */
export function left(deadline: number): number {
  // The difference can be slightly larger than the value added to the clock.
  return Math.min(LONGEST_MS, Math.max(1, deadline - performance.now()))
}
