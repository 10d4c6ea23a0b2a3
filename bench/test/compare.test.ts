import { expect, test } from 'vitest'
import { compareBuilds } from '../against/compare.js'
import { RunProgress } from '../core/progress.js'
import { judgeComparison } from '../core/verdict.js'

const suite = {
  name: 'a suite',
  figures: [{ key: 'us', name: 'latency', unit: 'µs', better: 'lower' as const }],
}

/** Samples that are given, in turn. */
const giving = (name: string, values: readonly number[]) => {
  const left = [...values]
  return { name, measure: async () => ({ us: left.shift() ?? Number.NaN }) }
}
const times = (count: number, value: number) => Array.from({ length: count }, () => value)
const quiet = { say: () => {} }
const run = (these: readonly number[], others: readonly number[]) =>
  compareBuilds(
    suite,
    [{ name: 'cell', seconds: 1, candidates: [giving('this', these), giving('other', others)] }],
    { rounds: 5, progress: new RunProgress(10, quiet), say: () => {} },
  )

test('what is the same is measured once', async () => {
  const { comparisons } = await run([1, 2, 1, 2, 1], [2, 1, 2, 1, 2])
  expect(comparisons).toEqual([
    {
      ...{ cell: 'cell', figure: 'latency', unit: 'µs', better: 'lower' },
      first: { these: [1, 2, 1, 2, 1], others: [2, 1, 2, 1, 2] },
    },
  ])
})

test('what looks slower is measured again, twice as often, and may turn out to be the same', async () => {
  const { comparisons } = await run([...times(5, 2), ...times(10, 1)], times(15, 1))
  expect(comparisons[0]?.again).toEqual({ these: times(10, 1), others: times(10, 1) })
  expect(comparisons.map(judgeComparison)).toEqual(['same'])
})

test('what is slower stays slower', async () => {
  const { comparisons } = await run(times(15, 2), times(15, 1))
  expect(comparisons.map(judgeComparison)).toEqual(['slower'])
})

test('what is faster is not measured again', async () => {
  const { comparisons } = await run(times(15, 1), times(15, 2))
  expect(comparisons[0]?.again).toBeUndefined()
  expect(comparisons.map(judgeComparison)).toEqual(['faster'])
})
