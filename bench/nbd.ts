// fio over NBD: nbd-client with a swap-server over shm and over iwarp on loopback, beside nbdkit's memory plugin over a
// Unix socket and over TCP, and qemu-nbd. All of them live side by side, and those that are not measured sleep.
import type { Build } from './against/build.js'
import type { Table } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'
import { ratios } from './core/statistics.js'
import { fio } from './nbd/fio.js'
import { limits } from './nbd/limits.js'
import { StartedTargets } from './nbd/started-targets.js'
import { isPeer, NAMES, type Name, runs, SIZE } from './nbd/targets.js'
import { WORKLOADS, type Workload } from './nbd/workloads.js'
import type { Place, Suite } from './suite.js'

const SECONDS = 2
const QUICK_SECONDS = 1
/** fio's start and its warm-up. */
const START_SECONDS = 0.8

export function nbd({ folder, quick }: Place): Suite {
  const seconds = quick ? QUICK_SECONDS : SECONDS
  const targets = new StartedTargets(folder)
  const workloads = WORKLOADS.filter((workload) => workload.quick || !quick)
  const group = (workload: Workload, build: Build): Group => ({
    name: workload.name,
    seconds: START_SECONDS + seconds,
    candidates: NAMES.filter((name) => runs(name, workload)).map((name) => ({
      name,
      peer: isPeer(name),
      measure: async () => fio((await targets.get(name, build)).uri, workload, seconds),
    })),
  })
  return {
    name: 'nbd',
    about: `fio in ${SIZE} of random data over NBD; a sample is ${seconds} s`,
    figures: [{ key: 'iops', name: 'IOPS', unit: '1/s', better: 'higher' }],
    groups: (build) => workloads.map((workload) => group(workload, build)),
    report: (samples) => ({
      tables: workloads.map((workload) => table(workload, samples)),
      limits: limits(samples),
    }),
    check: () => targets.check(),
    close: () => targets.close(),
  }
}

const BESIDE = NAMES.filter(isPeer)

function table(workload: Workload, samples: Samples): Table {
  const of = (name: Name, figure: string) => samples.of(workload.name, name, figure)
  return {
    title: workload.name,
    columns: ['target', 'IOPS', 'p50 µs', 'p99 µs', ...BESIDE.map((peer) => `of ${peer}`)],
    rows: NAMES.filter((name) => runs(name, workload)).map((name) => [
      name,
      of(name, 'iops'),
      of(name, 'p50'),
      of(name, 'p99'),
      ...BESIDE.map((peer) => ratios(of(name, 'iops'), of(peer, 'iops'))),
    ]),
  }
}
