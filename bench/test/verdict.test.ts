import { expect, test } from 'vitest'
import type { Comparison, Limit, Report } from '../core/report.js'
import { spread } from '../core/statistics.js'
import { failed, judgeComparison, judgeLimit, judgeRatio } from '../core/verdict.js'

const limit = (bound: '≤' | '≥', rounds: readonly number[]): Limit => ({
  ...{ what: 'a figure', unit: '', bound, limit: 10 },
  rounds,
})

test('a limit is held when the median holds it, whatever single rounds do', () => {
  expect(judgeLimit(limit('≤', [9, 9, 10, 20, 20]))).toBe('held')
  expect(judgeLimit(limit('≥', [1, 1, 10, 11, 11]))).toBe('held')
})

test('a limit is missed within the spread when some round holds it', () => {
  expect(judgeLimit(limit('≤', [9, 11, 11, 11, 11]))).toBe('missed within the spread')
  expect(judgeLimit(limit('≥', [9, 9, 9, 9, 11]))).toBe('missed within the spread')
})

test('a limit is missed when the whole spread lies beyond it', () => {
  expect(judgeLimit(limit('≤', [10.1, 11, 12, 13, 14]))).toBe('missed')
  expect(judgeLimit(limit('≥', [9.9, 9, 8, 7, 6]))).toBe('missed')
})

test('one good round of ten is outside of the spread and saves no limit', () => {
  expect(judgeLimit(limit('≤', [1, 11, 11, 11, 11, 11, 11, 11, 11, 11]))).toBe('missed')
})

test('fewer than five rounds are not judged, nor are rounds that failed', () => {
  expect(judgeLimit(limit('≤', [20, 20, 20, 20]))).toBe('not judged')
  expect(judgeLimit(limit('≤', [20, 20, 20, 20, Number.NaN]))).toBe('not judged')
})

test.each([
  ['lower', [0.9, 0.95, 1, 1.05, 1.1], 'same'],
  ['lower', [1.01, 1.02, 1.03, 1.04, 1.05], 'slower'],
  ['lower', [0.95, 0.96, 0.97, 0.98, 0.99], 'faster'],
  ['higher', [1.01, 1.02, 1.03, 1.04, 1.05], 'faster'],
  ['higher', [0.95, 0.96, 0.97, 0.98, 0.99], 'slower'],
  ['higher', [1, 1, 1, 1, 1], 'same'],
  ['higher', [0.9, 0.9, 0.9, 0.9], 'not judged'],
] as const)('where %s is better, ratios of %j are %s', (better, ratios, verdict) => {
  expect(judgeRatio(spread(ratios), better)).toBe(verdict)
})

const ones = (count: number) => Array.from({ length: count }, () => 1)
const paired = (these: readonly number[]) => ({ these, others: ones(these.length) })
const slow = [1.1, 1.1, 1.2, 1.2, 1.3]

const comparison = (first: readonly number[], again?: readonly number[]): Comparison => ({
  ...{ cell: 'a cell', figure: 'latency', unit: 'µs', better: 'lower' },
  first: paired(first),
  ...(again !== undefined && { again: paired(again) }),
})

test('slower needs a second series that says so too', () => {
  expect(judgeComparison(comparison(slow))).toBe('slower')
  expect(judgeComparison(comparison(slow, [...slow, ...slow]))).toBe('slower')
  expect(judgeComparison(comparison(slow, [0.9, ...slow, 1, 0.8]))).toBe('same')
  expect(judgeComparison(comparison(slow, [0.9, 0.9, 0.9, 0.9, 0.9]))).toBe('same')
})

test('slower is not judged when the second series failed', () => {
  expect(judgeComparison(comparison(slow, [1.1, Number.NaN, Number.NaN]))).toBe('not judged')
})

const report = (parts: Partial<Report>): Report => ({
  ...{ suite: 'a suite', about: '', rounds: 5, quick: false },
  ...{ tables: [], limits: [], comparisons: [], samples: [], failures: [] },
  ...parts,
})

test('a run fails for a limit missed, a cell slower and a sample that failed, and for nothing else', () => {
  expect(failed(report({}))).toBe(false)
  expect(failed(report({ limits: [limit('≤', [11, 11, 11, 11, 11])] }))).toBe(true)
  expect(failed(report({ limits: [limit('≤', [9, 11, 11, 11, 11])] }))).toBe(false)
  expect(failed(report({ limits: [limit('≤', [11])] }))).toBe(false)
  expect(failed(report({ comparisons: [comparison(slow)] }))).toBe(true)
  expect(failed(report({ comparisons: [comparison(slow.map((value) => 1 / value))] }))).toBe(false)
  expect(failed(report({ failures: ['it did not start'] }))).toBe(true)
})
