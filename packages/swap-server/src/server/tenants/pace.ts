/** Milliseconds from one turn to the next, and turns that come at once after a pause. */
const STEP_MS = 2
const BURST = 128
/** A turn that would come later is refused: its request would be no arrival any more, and only fill the heap. */
const LONGEST_WAIT_MS = 4_000

/**
 * Turns of one tenant: a burst at once, then one each step, so that what it has done costs others little of the
 * server's processor (the generic cell rate algorithm of ITU-T I.371).
 */
export class Pace {
  /** when the next turn would come without a burst, of performance.now() */
  #due = Number.NEGATIVE_INFINITY

  /** Takes a turn. @returns milliseconds until it comes, 0: now; undefined: too many wait, and none was taken */
  next(now = performance.now()): number | undefined {
    const turn = Math.max(this.#due, now - (BURST - 1) * STEP_MS)
    if (turn - now > LONGEST_WAIT_MS) return undefined
    this.#due = turn + STEP_MS
    return Math.max(0, turn - now)
  }
}
