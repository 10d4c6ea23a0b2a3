// Verdicts about a limit, and about two builds.
import type { Better, Comparison, Limit, Paired, Report } from './report.js'
import { LEAST_ROUNDS, ratios, type Spread, spread } from './statistics.js'

/** Only `missed` is a failure: the whole spread lies beyond the limit. */
export type LimitVerdict = 'held' | 'missed within the spread' | 'missed' | 'not judged'

export function judgeLimit({ rounds, bound, limit }: Limit): LimitVerdict {
  const { median, low, high, count } = spread(rounds)
  if (count < LEAST_ROUNDS) return 'not judged'
  const holds = (value: number) => (bound === '≤' ? value <= limit : value >= limit)
  if (holds(median)) return 'held'
  return holds(bound === '≤' ? low : high) ? 'missed within the spread' : 'missed'
}

/** Two builds are the same, as far as the rounds can tell, when the spread of their ratios includes 1. */
export type RatioVerdict = 'same' | 'faster' | 'slower' | 'not judged'

/** This build to the other. */
export const ratioOf = ({ these, others }: Paired): Spread => spread(ratios(these, others))

export function judgeRatio({ low, high, count }: Spread, better: Better): RatioVerdict {
  if (count < LEAST_ROUNDS) return 'not judged'
  if (low <= 1 && high >= 1) return 'same'
  return high < 1 === (better === 'lower') ? 'faster' : 'slower'
}

/**
 * Of two builds that do not differ, 1 figure in 32 looks slower after five rounds, and a run compares more than a
 * hundred. So slower is only what a second series, twice as long, calls slower too: 1 in 3,000.
 */
export function judgeComparison({ better, first, again }: Comparison): RatioVerdict {
  const verdict = judgeRatio(ratioOf(first), better)
  if (verdict !== 'slower' || again === undefined) return verdict
  const second = judgeRatio(ratioOf(again), better)
  return second === 'faster' ? 'same' : second
}

/** Whether a run must end with a failing status. */
export function failed({ limits, comparisons, failures }: Report): boolean {
  return (
    failures.length > 0 ||
    limits.some((limit) => judgeLimit(limit) === 'missed') ||
    comparisons.some((comparison) => judgeComparison(comparison) === 'slower')
  )
}
