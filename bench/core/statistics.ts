// The statistics of a few rounds. Nothing is assumed about the distribution of the noise: on a shared machine it
// has a long tail and more than one mode, so means and standard deviations would follow the outliers.

/** Fewer rounds have no spread at the confidence below: with four, 1 in 16 series lies wholly above its median. */
export const LEAST_ROUNDS = 5
/** The chance, on either side, that the true median lies beyond a spread is at most this. */
const TAIL = 0.05

/**
 * The median of the rounds, and an interval that holds the true one: from the k-th least round to the k-th
 * greatest. For 5 to 7 rounds that is the least and the greatest.
 */
export interface Spread {
  readonly median: number
  readonly low: number
  readonly high: number
  /** Rounds that gave a figure. */
  readonly count: number
}

export function spread(rounds: readonly number[]): Spread {
  const sorted = finite(rounds).sort((a, b) => a - b)
  const cut = outside(sorted.length)
  return {
    median: middle(sorted),
    low: sorted.at(cut) ?? Number.NaN,
    high: sorted.at(-1 - cut) ?? Number.NaN,
    count: sorted.length,
  }
}

export function median(values: readonly number[]): number {
  return middle(finite(values).sort((a, b) => a - b))
}

/** Round by round, so that what slowed both down does not count. NaN for a round that one of them lacks. */
export function ratios(values: readonly number[], over: readonly number[]): number[] {
  return values.map((value, round) => value / (over[round] ?? Number.NaN))
}

export function differences(values: readonly number[], less: readonly number[]): number[] {
  return values.map((value, round) => value - (less[round] ?? Number.NaN))
}

/**
 * How many of `count` rounds, at either end, lie outside of their spread. A round lies below the true median with
 * probability 1/2, so the k + 1st least is above it with the probability of at most k heads in `count` throws of
 * a coin; this is the greatest k for which that is at most TAIL. (The confidence interval of the sign test.)
 */
export function outside(count: number): number {
  let exactly = 0.5 ** count
  let atMost = exactly
  for (let k = 0; ; k++) {
    exactly *= (count - k) / (k + 1)
    atMost += exactly
    if (atMost > TAIL) return k
  }
}

const finite = (values: readonly number[]): number[] => values.filter((value) => Number.isFinite(value))

function middle(sorted: readonly number[]): number {
  const half = sorted.length >> 1
  const upper = sorted[half] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[half - 1] ?? Number.NaN)) / 2
}
