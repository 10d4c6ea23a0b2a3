// The transports of each size side by side, and the four steps from interrupts and copies to neither.
import type { Table } from '../core/report.js'
import type { Samples } from '../core/rounds.js'
import { ratios } from '../core/statistics.js'
import { CASES, groupOf, SIZES, STEP_CASES, STEPS } from './cases.js'

export const tables = (samples: Samples): Table[] => [
  ...SIZES.map((size) => transportTable(size, samples)),
  ...stepTables(samples),
]

const scaled = (rounds: readonly number[], factor: number) => rounds.map((value) => value * factor)

function transportTable(size: number, samples: Samples): Table {
  const of = (name: string, figure: string) => samples.of(groupOf(size), name, figure)
  const [netP50, netRate] = [of('net', 'p50'), of('net', 'messagesPerSecond')]
  return {
    title: `${size} B: round trip in µs, and messages one way`,
    columns: ['transport', 'p50', 'p99', 'p99.9', '1000/s', 'MiB/s', 'net p50 / p50', 'rate / net rate'],
    rows: CASES.map(({ name }) => {
      const [p50, rate] = [of(name, 'p50'), of(name, 'messagesPerSecond')]
      return [
        name,
        p50,
        of(name, 'p99'),
        of(name, 'p999'),
        scaled(rate, 1e-3),
        of(name, 'mebibytesPerSecond'),
        ratios(netP50, p50),
        ratios(rate, netRate),
      ]
    }),
  }
}

/** What each step brings: a factor above 1 is faster than the step before. */
function stepTables(samples: Samples): Table[] {
  const schemes = [...new Set(STEP_CASES.map(({ name }) => name.split(' ')[0] as string))]
  return schemes.flatMap((scheme) =>
    (STEP_CASES[0]?.sizes ?? []).map((size): Table => {
      const of = (title: string, figure: string) => samples.of(groupOf(size), `${scheme} ${title}`, figure)
      const titles = STEPS.map(({ title }) => title)
      return {
        title: `steps over ${scheme}, ${size} B; a factor above 1 is faster than the step before`,
        columns: ['step', 'p50 µs', 'factor', 'of step 0', '1000/s', 'rate factor', 'rate of step 0'],
        rows: titles.map((title, i) => {
          const [first, before] = [titles[0] ?? title, titles[i - 1] ?? title]
          const [p50, rate] = [of(title, 'p50'), of(title, 'messagesPerSecond')]
          return [
            title,
            p50,
            ratios(of(before, 'p50'), p50),
            ratios(of(first, 'p50'), p50),
            scaled(rate, 1e-3),
            ratios(rate, of(before, 'messagesPerSecond')),
            ratios(rate, of(first, 'messagesPerSecond')),
          ]
        }),
      }
    }),
  )
}
