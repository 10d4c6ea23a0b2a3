// Requests and answers between two processes: the ring with no option set, beside grpc-js.
import { join } from 'node:path'
import type { Report, Value } from './core/report.js'
import type { Samples } from './core/rounds.js'
import { ratios } from './core/statistics.js'
import type { Case } from './ring/cases.js'
import { pair } from './ring/measure.js'
import type { Place, Suite } from './suite.js'

const SIZES = [64, 4096, 65_536]
const MILLISECONDS = 300
const QUICK_MILLISECONDS = 60
const START_SECONDS = 0.6
/** What a sample times, one way or another. */
const TIMED = 5

const GRPC = 'grpc-js tcp'
const ours = { transport: 'default-requests', sizes: SIZES }
const peers = { transport: 'grpc', sizes: SIZES, peer: true }
const CASES: readonly Case[] = [
  { ...ours, name: 'ring shm', at: (folder) => `shm://${join(folder, 'shm.sock')}` },
  { ...ours, name: 'ring iwarp', at: () => 'iwarp://127.0.0.1:0' },
  { ...peers, name: GRPC, at: () => '127.0.0.1:0' },
  { ...peers, name: 'grpc-js unix', at: (folder) => `unix:${join(folder, 'unix.sock')}` },
]

export function rpc({ folder, quick }: Place): Suite {
  const milliseconds = quick ? QUICK_MILLISECONDS : MILLISECONDS
  return {
    name: 'rpc',
    about: `two processes, started for each sample; ${milliseconds} ms for each thing that is timed`,
    figures: [
      { key: 'p50', name: 'round trip, p50', unit: 'µs', better: 'lower' },
      { key: 'messagesPerSecond', name: 'requests', unit: '1/s', better: 'higher' },
    ],
    groups: (build) =>
      SIZES.map((size) => ({
        name: `${size} B`,
        seconds: START_SECONDS + (TIMED * milliseconds) / 1000,
        candidates: CASES.map((one) => ({
          name: one.name,
          peer: one.peer === true,
          measure: () => pair(build, one, size, folder, milliseconds),
        })),
      })),
    report,
  }
}

function report(samples: Samples): Pick<Report, 'tables' | 'limits'> {
  const rows = SIZES.flatMap((size) => {
    const of = (name: string, figure: string) => samples.of(`${size} B`, name, figure)
    return CASES.map(({ name, peer }): Value[] => [
      `${size} B, ${name}`,
      of(name, 'p50'),
      of(name, 'p99'),
      of(name, 'messagesPerSecond').map((rate) => rate / 1000),
      ...(peer === true
        ? ['', '']
        : [
            ratios(of(GRPC, 'p50'), of(name, 'p50')),
            ratios(of(name, 'messagesPerSecond'), of(GRPC, 'messagesPerSecond')),
          ]),
    ])
  })
  const columns = ['size, transport', 'p50, µs', 'p99, µs', '1000/s', `speed of ${GRPC}`, `rate of ${GRPC}`]
  const note = '1000/s: 64 requests outstanding; an answer is as long as its request'
  return { tables: [{ title: 'requests', columns, rows, note }], limits: [] }
}
