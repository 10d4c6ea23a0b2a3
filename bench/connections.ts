// Requests over 1 to 1,000 connections between two processes, and the memory that each connection takes: the ring with
// no option set, beside Node's sockets.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Build } from './against/build.js'
import { Child, run } from './core/child.js'
import type { Limit, Report, Value } from './core/report.js'
import type { Figures, Samples } from './core/rounds.js'
import { ratios } from './core/statistics.js'
import type { Place, Suite } from './suite.js'

const COUNTS = [1, 10, 100, 1000]
const QUICK_COUNTS = [1, 100]
/** So many connections take no more than so much memory of a side. */
const MANY = 1000
const MANY_MEBIBYTES = 128
const MILLISECONDS = 500
const QUICK_MILLISECONDS = 100
const DEADLINE_MS = 120_000

interface Transport {
  readonly name: string
  readonly transport: 'ring' | 'net'
  readonly at: (folder: string) => string
  readonly peer?: boolean
}

const SOCKET = 'connections.sock'
const NET = 'net'
const TRANSPORTS: readonly Transport[] = [
  { name: 'ring shm', transport: 'ring', at: (folder) => `shm://${join(folder, SOCKET)}` },
  { name: 'ring iwarp', transport: 'ring', at: () => 'iwarp://127.0.0.1:0' },
  { name: NET, transport: 'net', at: () => 'tcp://127.0.0.1', peer: true },
  { name: 'unix', transport: 'net', at: (folder) => `unix://${join(folder, SOCKET)}`, peer: true },
]

const groupOf = (count: number) => (count === 1 ? '1 connection' : `${count} connections`)

export function connections({ folder, quick }: Place): Suite {
  const milliseconds = quick ? QUICK_MILLISECONDS : MILLISECONDS
  const counts = quick ? QUICK_COUNTS : COUNTS
  return {
    name: 'connections',
    about: `two processes, started for each sample; requests of 64 B, one outstanding each, for ${milliseconds} ms`,
    figures: [
      { key: 'requestsPerSecond', name: 'requests', unit: '1/s', better: 'higher' },
      { key: 'p99', name: 'round trip, p99', unit: 'µs', better: 'lower' },
      { key: 'kibibytesIdle', name: 'memory of each', unit: 'KiB', better: 'lower' },
      { key: 'kibibytesUsed', name: 'memory of each, used', unit: 'KiB', better: 'lower' },
    ],
    groups: (build) =>
      counts.map((count) => ({
        name: groupOf(count),
        seconds: 1 + milliseconds / 1000 + count / 400,
        candidates: TRANSPORTS.map((one) => ({
          name: one.name,
          peer: one.peer === true,
          measure: () => sample(build, one, count, folder, milliseconds),
        })),
      })),
    report: (samples) => report(counts, samples),
  }
}

function report(counts: readonly number[], samples: Samples): Pick<Report, 'tables' | 'limits'> {
  const rows = counts.flatMap((count) => {
    const of = (name: string, figure: string) => samples.of(groupOf(count), name, figure)
    return TRANSPORTS.map(({ name, peer }): Value[] => [
      `${groupOf(count)}, ${name}`,
      of(name, 'requestsPerSecond').map((rate) => rate / 1000),
      of(name, 'p50'),
      of(name, 'p99'),
      of(name, 'kibibytesIdle'),
      of(name, 'kibibytesUsed'),
      peer === true ? '' : ratios(of(name, 'requestsPerSecond'), of(NET, 'requestsPerSecond')),
    ])
  })
  const columns = [
    'connections, transport',
    '1000/s',
    'p50, µs',
    'p99, µs',
    'KiB each',
    'used',
    `rate of ${NET}`,
  ]
  const note =
    'KiB each: of the connecting process, before the first request, and after 100 and more; shared memory by its part (Pss)'
  const rings = counts.includes(MANY) ? TRANSPORTS.filter(({ peer }) => peer !== true) : []
  const limits = rings.map(({ name }): Limit => {
    const rounds = samples.of(groupOf(MANY), name, 'kibibytesIdle').map((each) => (MANY * each) / 1024)
    return { what: `${name}, ${groupOf(MANY)}`, rounds, unit: 'MiB', bound: '≤', limit: MANY_MEBIBYTES }
  })
  return { tables: [{ title: 'requests of 64 B', columns, rows, note }], limits }
}

async function sample(
  build: Build,
  { transport, at }: Transport,
  count: number,
  folder: string,
  milliseconds: number,
): Promise<Figures> {
  rmSync(join(folder, SOCKET), { force: true })
  const peer = build.script('connections')
  await using listening = new Child(process.execPath, [
    ...peer,
    'listen',
    transport,
    at(folder),
    String(count),
  ])
  const [, uri] = await listening.prints(/^listening (\S+)$/m)
  const words = [...peer, 'connect', transport, uri as string, String(count), String(milliseconds)]
  const { stdout } = await run(process.execPath, words, { timeout: DEADLINE_MS, killSignal: 'SIGKILL' })
  return JSON.parse(stdout) as Figures
}
