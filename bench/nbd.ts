// fio over NBD: nbd-client with a swap-server over shm and over iwarp on loopback, beside nbdkit's memory plugin over a
// Unix socket and over TCP, and qemu-nbd. All of them live side by side, and those that are not measured sleep.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Build } from './against/build.js'
import type { Table } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'
import { ratios } from './core/statistics.js'
import { fio } from './nbd/fio.js'
import { limits } from './nbd/limits.js'
import { isPeer, NAMES, type Name, open, runs, SIZE, type Target } from './nbd/targets.js'
import { WORKLOADS, type Workload } from './nbd/workloads.js'
import type { Place, Suite } from './suite.js'

const run = promisify(execFile)

const SECONDS = 2
const QUICK_SECONDS = 1
/** fio's start and its warm-up. */
const START_SECONDS = 0.8

export function nbd({ folder, quick }: Place): Suite {
  const seconds = quick ? QUICK_SECONDS : SECONDS
  const targets = new Targets(folder)
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
