import { LONGEST_MS, milliseconds } from '@rdmakit/verbs/internal'
import { performance } from './clock.js'

export { LONGEST_MS, milliseconds }

/** @internal milliseconds that a step, or a request, may take when nobody says otherwise */
export const DEFAULT_TIMEOUT_MS = 5_000
/** @internal the same of a message of any length */
export const TRANSMIT_TIMEOUT_MS = 60_000
/** @internal when a time that can be waited for is over, of performance.now() */
export function deadlineAfter(name: string, value = DEFAULT_TIMEOUT_MS): number {
  return performance.now() + milliseconds(name, value)
}

/** @internal milliseconds until `deadline`, of performance.now(), as a timer takes them */
export function left(deadline: number): number {
  // The difference can be slightly larger than the value added to the clock.
  return Math.min(LONGEST_MS, Math.max(1, deadline - performance.now()))
}
