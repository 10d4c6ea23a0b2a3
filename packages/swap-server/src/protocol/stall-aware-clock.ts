/** Between two looks of a timer, in milliseconds. */
export interface ClockReading {
  /** of the time that passed, what counts as silence of a peer */
  readonly counted: number
  /** the rest: this process did not run */
  readonly missed: number
  /** Something was missed, and what peers said meanwhile lies unread: another look decides. */
  readonly late: boolean
}

/**
 * Time as a listener for peers measures it: without the time in which this process did not run (SIGSTOP, a machine
 * without a free processor or free memory), because that is no silence of a peer.
 */
export class StallAwareClock {
  readonly #every: number
  #lookedAt = performance.now()

  /** @param every milliseconds from look to look */
  constructor(every: number) {
    this.#every = every
  }

  look(): ClockReading {
    const passed = performance.now() - this.#lookedAt
    this.#lookedAt += passed
    const late = passed > 2 * this.#every
    const counted = late ? this.#every : passed
    return { counted, missed: passed - counted, late }
  }
}
