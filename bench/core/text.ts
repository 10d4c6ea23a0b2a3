// A report for people.
import type { Comparison, Limit, Report, Table, Value } from './report.js'
import { ratios } from './statistics.js'
import { figure, shown, tableLines } from './table.js'
import { judgeComparison, judgeLimit, type LimitVerdict, ratioOf } from './verdict.js'

export function textOf(report: Report): string[] {
  const { suite, about, rounds, quick, tables, limits, comparisons, failures } = report
  return [
    '',
    `${suite}: median (spread) of ${rounds} ${rounds === 1 ? 'round' : 'rounds'}; ${about}`,
    ...(quick ? ['quick: short and rough, nothing is judged'] : []),
    ...tables.flatMap(tableText),
    ...(limits.length > 0 ? ['', ...limitsText(limits)] : []),
    ...(comparisons.length > 0 ? ['', ...comparisonText(comparisons)] : []),
    ...failures.flatMap((failure) => ['', ...failureText(failure)]),
  ]
}

/** Of "missed within the spread". */
const VERDICT_WIDTH = 24

/**
 * With more limits than this only the missed ones are listed, and all are counted: hundreds of lines are unreadable.
 */
const MOST_LIMITS = 40

const valueText = (value: Value): string =>
  typeof value === 'string' ? value : typeof value === 'number' ? figure(value) : shown(value)

const tableText = ({ title, columns, rows, note }: Table): string[] => [
  '',
  title,
  ...tableLines(
    columns,
    rows.map((row) => row.map(valueText)),
  ),
  ...(note === undefined ? [] : [note]),
]

function limitsText(limits: readonly Limit[]): string[] {
  if (limits.length <= MOST_LIMITS) return limits.map(limitText)
  const verdicts = limits.map(judgeLimit)
  const count = (verdict: LimitVerdict) => `${verdicts.filter((one) => one === verdict).length} ${verdict}`
  const counts = (['held', 'missed within the spread', 'missed', 'not judged'] as const).map(count)
  return [
    ...limits.filter((_, i) => verdicts[i]?.startsWith('missed')).map(limitText),
    `${limits.length} limits: ${counts.join(', ')}`,
  ]
}

function limitText(limit: Limit): string {
  const verdict = judgeLimit(limit)
  const { what, rounds, unit, bound } = limit
  const held = `limit ${bound} ${figure(limit.limit)}`
  return `${verdict.padEnd(VERDICT_WIDTH)}  ${what}: ${shown(rounds)} ${unit}; ${held}`
}

/** The first line, and what a process said below it. */
function failureText(failure: string): string[] {
  const [first = '', ...more] = failure.split('\n').filter((line) => line.trim() !== '')
  return [`failed  ${first}`, ...more.map((line) => `        ${line}`)]
}

const ratioText = (value: number) => value.toFixed(3)

function comparisonText(comparisons: readonly Comparison[]): string[] {
  const verdicts = comparisons.map(judgeComparison)
  const rows = comparisons.map(({ cell, figure: name, unit, first, again }, i) => [
    cell,
    name,
    unit,
    shown(first.these),
    shown(first.others),
    shown(ratios(first.these, first.others), ratioText),
    again === undefined ? '' : shown(ratios(again.these, again.others), ratioText),
    verdicts[i] as string,
  ])
  const count = (verdict: string) => verdicts.filter((one) => one === verdict).length
  const outside = comparisons.filter(({ first }) => excludesOne(first)).length
  const repeated = comparisons.filter(({ again }) => again !== undefined).length
  return [
    ...tableLines(['cell', 'figure', 'unit', 'this', 'other', 'this/other', 'again', 'verdict'], rows),
    '',
    `${comparisons.length} figures: ${count('same')} the same within their spread, ${count('faster')} faster, ` +
      `${count('slower')} slower, ${count('not judged')} not judged`,
    `at first the spreads of ${outside} ratios did not include 1, and ${repeated} of these looked slower`,
  ]
}

const excludesOne = (paired: Comparison['first']): boolean => {
  const { low, high } = ratioOf(paired)
  return low > 1 || high < 1
}
