import { afterEach, expect, test, vi } from 'vitest'
import { oneBuild } from '../against/build.js'
import { RunProgress } from '../core/progress.js'
import { failed } from '../core/verdict.js'
import { runSuite } from '../run.js'
import type { Suite } from '../suite.js'

const close = vi.fn(async () => {})
afterEach(() => close.mockClear())

const suite = (check: NonNullable<Suite['check']>): Suite => ({
  ...{ name: 'a suite', about: 'one cell', figures: [], check, close },
  groups: () => [{ name: 'cell', seconds: 1, candidates: [{ name: 'a', measure: async () => ({ us: 7 }) }] }],
  report: (samples) => ({
    tables: [{ title: 'times', columns: ['cell', 'µs'], rows: [['cell', samples.of('cell', 'a', 'us')]] }],
    limits: [],
  }),
})

const run = (check: NonNullable<Suite['check']>) =>
  runSuite(suite(check), {
    ...{ rounds: 2, quick: true, only: undefined, build: oneBuild().ours, other: undefined },
    ...{ progress: new RunProgress(10, { say: () => {} }), say: () => {} },
  })

const figures = {
  tables: [{ rows: [['cell', [7, 7]]] }],
  samples: [{ group: 'cell', candidate: 'a', rounds: [{ us: 7 }, { us: 7 }] }],
}

test('what a check finds is a failure beside the figures', async () => {
  const report = await run(async () => ['3 pages were not moved'])
  expect(report).toMatchObject({ ...figures, failures: ['3 pages were not moved'] })
})

test('a check that fails leaves the figures, and fails the run', async () => {
  const report = await run(async () => {
    throw new Error('status 69')
  })
  expect(report).toMatchObject({ ...figures, failures: ['the figures could not be checked: status 69'] })
  expect(failed(report)).toBe(true)
  expect(close).toHaveBeenCalledOnce()
})
