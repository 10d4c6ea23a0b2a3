// Reports for programs: the same as JSON, every round beside its median, spread and verdict.
import type { Comparison, Limit, Paired, Report, Table, Value } from './report.js'
import { ratios, spread } from './statistics.js'
import { failed, judgeComparison, judgeLimit, judgeRatio } from './verdict.js'

/** @returns something for JSON.stringify, to which NaN is null */
export function documentOf(reports: readonly Report[]) {
  return { failed: reports.some(failed), suites: reports.map(suiteOf) }
}

const suiteOf = (report: Report) => ({
  suite: report.suite,
  about: report.about,
  rounds: report.rounds,
  quick: report.quick,
  failed: failed(report),
  tables: report.tables.map(tableOf),
  limits: report.limits.map(limitOf),
  comparisons: report.comparisons.map(comparisonOf),
  failures: report.failures,
  samples: report.samples,
})

const figureOf = (rounds: readonly number[]) => ({ ...spread(rounds), rounds })

const columnOf = (value: Value) => (Array.isArray(value) ? figureOf(value) : value)

/** Rows as objects, by the names of the columns. */
const tableOf = ({ title, columns, rows, note }: Table) => ({
  title,
  rows: rows.map((row) =>
    Object.fromEntries(row.map((value, column) => [columns[column] ?? column, columnOf(value)])),
  ),
  ...(note !== undefined && { note }),
})

const limitOf = (limit: Limit) => ({ ...limit, ...figureOf(limit.rounds), verdict: judgeLimit(limit) })

function comparisonOf(comparison: Comparison) {
  const { cell, figure, unit, better, first, again } = comparison
  const pairedOf = ({ these, others }: Paired) => {
    const ratio = figureOf(ratios(these, others))
    return {
      these: figureOf(these),
      others: figureOf(others),
      ratio,
      includesOne: ratio.low <= 1 && ratio.high >= 1,
      verdict: judgeRatio(ratio, better),
    }
  }
  return {
    cell,
    figure,
    unit,
    better,
    ...pairedOf(first),
    ...(again !== undefined && { again: pairedOf(again) }),
    verdict: judgeComparison(comparison),
  }
}
