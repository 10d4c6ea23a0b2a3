import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { documentOf } from '../core/document.js'
import type { Report } from '../core/report.js'
import { readReports } from '../core/reports-file.js'
import { figure, shown, tableLines } from '../core/table.js'
import { textOf } from '../core/text.js'

const report: Report = {
  ...{ suite: 'verbs', about: 'two processes', rounds: 5, quick: false },
  tables: [{ title: 'beside the peer', columns: ['what', 'µs'], rows: [['WRITE', [1, 2, 3, 4, 5]]] }],
  limits: [{ what: 'WRITE', rounds: [1, 2, 3, 4, 5], unit: '× UCX', bound: '≤', limit: 0.5 }],
  comparisons: [
    {
      ...{ cell: 'WRITE', figure: 'latency', unit: 'µs', better: 'lower' },
      first: { these: [2, 2, 2, 2, 2], others: [2, 1, 2, 4, 2] },
    },
  ],
  samples: [{ group: 'WRITE', candidate: 'rdmakit', rounds: [{ us: 1 }, undefined], failures: [] }],
  failures: ['SEND: UCX: it did not start\n\nno device'],
}

test('numbers have three digits, and what is missing is a dash', () => {
  expect([0.123456, 12.3456, 123456, Number.NaN].map(figure)).toEqual(['0.123', '12.3', '123,456', '–'])
  expect(shown([1, 2, 3, 4, 5])).toBe('3 (1–5)')
  expect(shown([2, 2, 2])).toBe('2')
  expect(shown([])).toBe('–')
})

test('numbers stand to the right, words to the left', () => {
  const lines = tableLines(
    ['cell', 'µs'],
    [
      ['64 B: ring', '3 (1–5)'],
      ['SEND', '–'],
    ],
  )
  expect(lines).toEqual(['cell             µs', '64 B: ring  3 (1–5)', 'SEND              –'])
})

test('a report for people', () => {
  expect(textOf(report)).toEqual([
    '',
    'verbs: median (spread) of 5 rounds; two processes',
    '',
    'beside the peer',
    'what        µs',
    'WRITE  3 (1–5)',
    '',
    'missed                    WRITE: 3 (1–5) × UCX; limit ≤ 0.5',
    '',
    'cell   figure   unit  this    other           this/other  again  verdict',
    'WRITE  latency  µs       2  2 (1–4)  1.000 (0.500–2.000)         same',
    '',
    '1 figures: 1 the same within their spread, 0 faster, 0 slower, 0 not judged',
    'at first the spreads of 0 ratios did not include 1, and 0 of these looked slower',
    '',
    'failed  SEND: UCX: it did not start',
    '        no device',
  ])
})

test('of many limits the missed ones are listed, and all are counted', () => {
  const limitOf = (limit: number) =>
    ({ what: `to ${limit}`, rounds: [1, 2, 3, 4, 5], unit: '×', bound: '≤', limit }) as const
  const limits = [...Array.from({ length: 40 }, () => limitOf(3)), limitOf(2), limitOf(0.5)]
  const text = textOf({ ...report, tables: [], limits, comparisons: [], failures: [] })
  expect(text.slice(2)).toEqual([
    '',
    'missed within the spread  to 2: 3 (1–5) ×; limit ≤ 2',
    'missed                    to 0.5: 3 (1–5) ×; limit ≤ 0.5',
    '42 limits: 40 held, 1 missed within the spread, 1 missed, 0 not judged',
  ])
})

test('a report for programs has every round', () => {
  const document = documentOf([report])
  expect(document).toMatchObject({
    failed: true,
    suites: [
      {
        tables: [{ rows: [{ what: 'WRITE', µs: { median: 3, low: 1, high: 5, rounds: [1, 2, 3, 4, 5] } }] }],
        limits: [{ what: 'WRITE', median: 3, limit: 0.5, verdict: 'missed' }],
        comparisons: [{ cell: 'WRITE', ratio: { median: 1 }, includesOne: true, verdict: 'same' }],
        samples: [{ group: 'WRITE', rounds: [{ us: 1 }, undefined] }],
      },
    ],
  })
})

test('a missing sample survives a file', () => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-test-'))
  try {
    const file = join(folder, 'reports.json')
    const limits = [{ what: 'WRITE', rounds: [1, Number.NaN], unit: '', bound: '≤', limit: 1 }]
    writeFileSync(file, JSON.stringify([{ ...report, limits }]))
    const [read] = readReports(file)
    expect(read?.limits).toEqual(limits)
  } finally {
    rmSync(folder, { recursive: true })
  }
})
