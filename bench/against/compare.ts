// Two builds, cell by cell: each cell is measured on both within a round, one right after the other.
import { estimate, OTHER, THIS } from '../core/cells.js'
import { duration } from '../core/progress.js'
import type { Comparison, Report } from '../core/report.js'
import { type Group, measureRounds, type Samples } from '../core/rounds.js'
import { judgeComparison } from '../core/verdict.js'
import type { Figure, Run, Suite } from '../suite.js'

/** A second series is this many times as long as the first, so that chance alone hardly calls it slower, too. */
const AGAIN = 2

type Compared = Pick<Report, 'comparisons' | 'samples' | 'failures'>

/** @param groups of `pairs`. What looks slower is measured again, apart from the first series. */
export async function compareBuilds(
  { name, figures }: Pick<Suite, 'name' | 'figures'>,
  groups: readonly Group[],
  { rounds, progress, say }: Pick<Run, 'rounds' | 'progress' | 'say'>,
): Promise<Compared> {
  const measure = (series: string, some: readonly Group[], count: number) =>
    progress.during(series, count, (told) => measureRounds(some, count, told))
  const first = await measure(name, groups, rounds)
  const comparisons = groups.flatMap((group) => compare(group.name, figures, first))
  const suspects = new Set(comparisons.filter(isSlower).map(({ cell }) => cell))
  if (suspects.size === 0) return { comparisons, samples: first.series, failures: first.failures }

  const wanted = groups.filter((group) => suspects.has(group.name))
  const more = AGAIN * rounds
  const seconds = estimate(wanted, more)
  say(
    `${name}: ${suspects.size} of ${groups.length} cells look slower; measured again ${more} times, ` +
      `about ${duration(seconds)}: ${[...suspects].join('; ')}`,
  )
  progress.expectMore(seconds)
  const second = await measure(`${name}, again`, wanted, more)
  const again = wanted.flatMap((group) => compare(group.name, figures, second))
  return {
    comparisons: comparisons.map((comparison) => {
      const repeated = again.find(
        ({ cell, figure }) => cell === comparison.cell && figure === comparison.figure,
      )
      return isSlower(comparison) && repeated ? { ...comparison, again: repeated.first } : comparison
    }),
    samples: [...first.series, ...second.series],
    failures: [...first.failures, ...second.failures],
  }
}

const isSlower = (comparison: Comparison): boolean => judgeComparison(comparison) === 'slower'

/** A comparison for each figure that the cell has. */
function compare(cell: string, figures: readonly Figure[], samples: Samples): Comparison[] {
  return figures.flatMap(({ key, name, unit, better }) => {
    const first = paired(cell, key, samples)
    const measured = [...first.these, ...first.others].some(Number.isFinite)
    return measured ? [{ cell, figure: name, unit, better, first }] : []
  })
}

const paired = (cell: string, key: string, samples: Samples) => ({
  these: samples.of(cell, THIS, key),
  others: samples.of(cell, OTHER, key),
})
