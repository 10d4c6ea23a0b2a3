// What fio reaches over NBD as it asks for more at a time: IOPS by depth, and throughput by connections, of which each has a
// lane of its own in nbd-client. Ours over shm and over iwarp, beside nbdkit over a Unix socket and over TCP.
import type { Build } from './against/build.js'
import type { Report, Table } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'
import { fio } from './nbd/fio.js'
import { StartedTargets } from './nbd/started-targets.js'
import { isPeer, type Name, SIZE } from './nbd/targets.js'
import type { Workload } from './nbd/workloads.js'
import type { Place, Suite } from './suite.js'

const NAMES: readonly Name[] = ['shm', 'iwarp', 'nbdkit', 'nbdkit, TCP']
const DEPTHS = [1, 2, 4, 8, 16, 32, 64]
const QUICK_DEPTHS = [8]
/** nbd-client's default is at most 8. */
const CONNECTIONS = [1, 2, 4, 8]
const QUICK_CONNECTIONS = [4]
const LARGE_KIB = 128
const SECONDS = 1
/** fio's start and its warm-up. */
const START_SECONDS = 0.8

interface Point extends Workload {
  /** The first column of its table. */
  readonly at: number
}

interface Curve {
  readonly title: string
  readonly column: string
  readonly kibibytes: number
  readonly points: readonly Point[]
}

const NEITHER = { pages: false, quick: true } as const

/** 4 KiB at random, on one connection. */
function byDepth(what: 'read' | 'write', depths: readonly number[]): Curve {
  const point = (depth: number): Point => ({
    ...NEITHER,
    ...{ name: `${what}, depth ${depth}`, at: depth, depth },
    options: ['--bs=4k', `--rw=rand${what}`],
  })
  return { title: `IOPS, ${what} of 4 KiB`, column: 'depth', kibibytes: 4, points: depths.map(point) }
}

/** Large requests at random, 4 outstanding on each connection. */
function byConnections(what: 'read' | 'write', counts: readonly number[]): Curve {
  const point = (connections: number): Point => ({
    ...NEITHER,
    ...{ name: `${what}, ${connections} connections`, at: connections, connections, depth: 4 },
    options: [`--bs=${LARGE_KIB}k`, `--rw=rand${what}`],
  })
  const title = `MiB/s, ${what} of ${LARGE_KIB} KiB`
  return { title, column: 'connections', kibibytes: LARGE_KIB, points: counts.map(point) }
}

export function curves({ folder, quick }: Place): Suite {
  const targets = new StartedTargets(folder)
  const depths = quick ? QUICK_DEPTHS : DEPTHS
  const counts = quick ? QUICK_CONNECTIONS : CONNECTIONS
  const all = (quick ? (['read'] as const) : (['read', 'write'] as const)).flatMap((what) => [
    byDepth(what, depths),
    byConnections(what, counts),
  ])
  const group = (point: Point, build: Build): Group => ({
    name: point.name,
    seconds: START_SECONDS + SECONDS,
    candidates: NAMES.map((name) => ({
      name,
      peer: isPeer(name),
      measure: async () => fio((await targets.get(name, build)).uri, point, SECONDS),
    })),
  })
  return {
    name: 'curves',
    about: `fio in ${SIZE} of random data over NBD, ${SECONDS} s a point`,
    figures: [{ key: 'iops', name: 'IOPS', unit: '1/s', better: 'higher' }],
    groups: (build) => all.flatMap(({ points }) => points.map((point) => group(point, build))),
    report: (samples) => report(all, samples),
    check: () => targets.check(),
    close: () => targets.close(),
  }
}

function report(all: readonly Curve[], samples: Samples): Pick<Report, 'tables' | 'limits'> {
  return { tables: all.map((curve) => table(curve, samples)), limits: [] }
}

function table({ title, column, kibibytes, points }: Curve, samples: Samples): Table {
  const scaled = (iops: number) => (kibibytes === LARGE_KIB ? (iops * kibibytes) / 1024 : iops)
  return {
    title,
    columns: [column, ...NAMES],
    rows: points.map(({ at, name }) => [
      String(at),
      ...NAMES.map((target) => samples.of(name, target, 'iops').map(scaled)),
    ]),
  }
}
