// fio 4 KiB random reads and writes over NBD: nbd-client with a swap-server over shm and over iwarp on loopback,
// beside nbdkit's memory plugin over a Unix socket and over TCP. All of them live side by side, and who does not
// run sleeps.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Build } from './against/build.js'
import type { Limit, Table } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'
import { ratios } from './core/statistics.js'
import { fio, type Workload } from './nbd/fio.js'
import { isPeer, NAMES, type Name, open, SIZE, type Target } from './nbd/targets.js'
import type { Place, Suite } from './suite.js'

const run = promisify(execFile)

const SECONDS = 2
const QUICK_SECONDS = 1
/** fio's start and its warm-up. */
const START_SECONDS = 0.8

const WORKLOADS: readonly Workload[] = (['randread', 'randwrite'] as const).flatMap((kind) =>
  [1, 32].map((depth) => ({ kind, depth })),
)
const groupOf = ({ kind, depth }: Workload) => `${kind}, depth ${depth}`

/** What ours is held to. Checksums are on. */
const LIMITS: readonly { ours: Name; peer: Name; holds: (workload: Workload) => boolean }[] = [
  { ours: 'shm', peer: 'nbdkit', holds: () => true },
  { ours: 'iwarp', peer: 'nbdkit, TCP', holds: ({ depth }) => depth === 32 },
]

export function nbd({ folder, quick }: Place): Suite {
  const seconds = quick ? QUICK_SECONDS : SECONDS
  const targets = new Targets(folder)
  const group = (workload: Workload, build: Build): Group => ({
    name: groupOf(workload),
    seconds: START_SECONDS + seconds,
    candidates: NAMES.map((name) => ({
      name,
      peer: isPeer(name),
      measure: async () => fio((await targets.get(name, build)).uri, workload, seconds),
    })),
  })
  return {
    name: 'nbd',
    about: `fio, 4 KiB at random in ${SIZE} of random data over NBD; a sample is ${seconds} s`,
    figures: [{ key: 'iops', name: 'IOPS', unit: '1/s', better: 'higher' }],
    groups: (build) => WORKLOADS.map((workload) => group(workload, build)),
    report: (samples) => ({
      tables: WORKLOADS.map((workload) => table(workload, samples)),
      limits: LIMITS.flatMap(({ ours, peer, holds }) =>
        WORKLOADS.filter(holds).map((workload) => limit(workload, ours, peer, samples)),
      ),
    }),
    check: () => targets.check(),
    close: () => targets.close(),
  }
}

/** Started when they are first measured, and kept until the end. */
class Targets {
  readonly #folder: string
  readonly #open = new Map<string, Target>()

  constructor(folder: string) {
    this.#folder = folder
  }

  async get(name: Name, build: Build): Promise<Target> {
    const key = `${name} of ${build.label} build`
    const found = this.#open.get(key)
    if (found !== undefined) return found
    const target = await open(name, build, mkdtempSync(join(this.#folder, 'target-')))
    try {
      // Each page is written once: a page never written is answered without network, which would flatter us.
      await run('nbdcopy', [this.#random(), target.uri], { timeout: 60_000 })
    } catch (failure) {
      await target[Symbol.asyncDispose]()
      throw failure
    }
    this.#open.set(key, target)
    return target
  }

  #random(): string {
    const path = join(this.#folder, 'random')
    if (!existsSync(path))
      for (let i = 0; i < 256; i++) writeFileSync(path, randomBytes(2 ** 20), { flag: 'a' })
    return path
  }

  async check(): Promise<string[]> {
    const wrong: string[] = []
    for (const [key, target] of this.#open) {
      const spared = await target.pagesSpared()
      if (spared > 0) wrong.push(`${key}: ${spared} pages were not moved, so its figures are too good`)
    }
    return wrong
  }

  async close(): Promise<void> {
    for (const target of this.#open.values()) await target[Symbol.asyncDispose]()
  }
}

function table(workload: Workload, samples: Samples): Table {
  const of = (name: Name, figure: string) => samples.of(groupOf(workload), name, figure)
  return {
    title: groupOf(workload),
    columns: ['target', 'IOPS', 'p50 µs', 'p99 µs', 'of nbdkit', 'of nbdkit, TCP'],
    rows: NAMES.map((name) => [
      name,
      of(name, 'iops'),
      of(name, 'p50'),
      of(name, 'p99'),
      ratios(of(name, 'iops'), of('nbdkit', 'iops')),
      ratios(of(name, 'iops'), of('nbdkit, TCP', 'iops')),
    ]),
  }
}

function limit(workload: Workload, ours: Name, peer: Name, samples: Samples): Limit {
  const of = (name: Name) => samples.of(groupOf(workload), name, 'iops')
  const what = `${ours}, ${groupOf(workload)}`
  return { what, rounds: ratios(of(ours), of(peer)), unit: `× ${peer}`, bound: '≥', limit: 1 }
}
