// fio 4 KiB random reads and writes over NBD: nbd-client with a swap-server over shm and over iwarp on loopback,
// beside nbdkit's memory plugin over a Unix socket and over TCP. All of them live side by side and run in turn,
// so that the machine's drift hits all; who does not run sleeps.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { NAMES, type Name, open, SIZE, type Target } from './nbd/targets.js'
import { figure, median, printTable } from './table.js'

const run = promisify(execFile)

const CELLS = (['randread', 'randwrite'] as const).flatMap((workload) =>
  [1, 32].map((depth) => ({ workload, depth })),
)
type Cell = (typeof CELLS)[number]

interface Pace {
  rounds: number
  seconds: number
}
const PACE: Pace = { rounds: 5, seconds: 2 }
const QUICK: Pace = { rounds: 1, seconds: 1 }

interface Figures {
  iops: number
  /** µs, from submission to completion as fio sees it */
  p50: number
  p99: number
}

/** What a cell of ours is held to. Checksums are on. */
const LIMITS: readonly { ours: Name; peer: Name; holds: (cell: Cell) => boolean }[] = [
  { ours: 'shm', peer: 'nbdkit', holds: () => true },
  { ours: 'iwarp', peer: 'nbdkit, TCP', holds: ({ depth }) => depth === 32 },
]

/** The same for each target: a warm-up, then the time that counts; the contents of writes are random. */
function options(uri: string, { workload, depth }: Cell, { seconds }: Pace): string[] {
  return [
    '--name=bench',
    '--ioengine=nbd',
    `--uri=${uri}`,
    `--rw=${workload}`,
    '--bs=4k',
    `--iodepth=${depth}`,
    `--size=${SIZE}`,
    '--randrepeat=1',
    '--zero_buffers=0',
    '--scramble_buffers=1',
    '--time_based',
    '--ramp_time=300ms',
    `--runtime=${seconds}s`,
    '--output-format=json',
  ]
}

async function fio(uri: string, cell: Cell, pace: Pace): Promise<Figures> {
  const { stdout } = await run('fio', options(uri, cell, pace), {
    timeout: (pace.seconds + 30) * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: 2 ** 24,
  })
  const [job] = JSON.parse(stdout.slice(stdout.indexOf('{'))).jobs
  if (job.error !== 0) throw new Error(`fio on ${uri}: error ${job.error}`)
  const { iops, clat_ns } = cell.workload === 'randread' ? job.read : job.write
  const at = (percentile: string) => clat_ns.percentile[percentile] / 1000
  return { iops, p50: at('50.000000'), p99: at('99.000000') }
}

interface Result extends Cell {
  /** of each target, each round */
  rounds: Record<Name, Figures[]>
}

export async function nbd({ json, quick }: { json: boolean; quick: boolean }): Promise<void> {
  const pace = quick ? QUICK : PACE
  const [load = 0] = loadavg()
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-'))
  const targets = new Map<Name, Target>()
  try {
    // Each page is written once: a page never written is answered without network, which would flatter us.
    const random = join(folder, 'random')
    for (let i = 0; i < 256; i++) writeFileSync(random, randomBytes(2 ** 20), { flag: 'a' })
    for (const name of NAMES) {
      const own = join(folder, String(targets.size))
      mkdirSync(own)
      const target = await open(name, own)
      targets.set(name, target)
      await run('nbdcopy', [random, target.uri], { timeout: 60_000 })
    }
    const results = await measure(targets, pace)
    for (const [name, target] of targets) {
      const spared = await target.pagesSpared()
      if (spared > 0) throw new Error(`${name}: ${spared} pages were not moved, the figures flatter it`)
    }
    report(results, { pace, load }, json)
  } finally {
    for (const target of targets.values()) await target[Symbol.asyncDispose]()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Round by round, so that a bad minute of the machine spoils one sample of everything and not all of one. */
async function measure(targets: ReadonlyMap<Name, Target>, pace: Pace): Promise<Result[]> {
  const results = CELLS.map((cell) => ({
    ...cell,
    rounds: Object.fromEntries(NAMES.map((name) => [name, []])) as unknown as Result['rounds'],
  }))
  for (let round = 0; round < pace.rounds; round++)
    for (const result of results)
      for (const [name, { uri }] of targets) result.rounds[name].push(await fio(uri, result, pace))
  return results
}

/** Of each round, so that what slowed both down does not count. */
const ratios = ({ rounds }: Result, ours: Name, peer: Name) =>
  rounds[ours].map(({ iops }, i) => iops / (rounds[peer][i]?.iops ?? Number.NaN))

const spread = (values: readonly number[]) => ({
  median: median(values),
  least: Math.min(...values),
  most: Math.max(...values),
})

const shown = (values: readonly number[]) => {
  const { median, least, most } = spread(values)
  return `${figure(median)} (${figure(least)}–${figure(most)})`
}

/** @param load of the machine in the minute before: above 0.5 somebody else is at work, and the figures are rough */
function report(
  results: readonly Result[],
  { pace, load }: { pace: Pace; load: number },
  json: boolean,
): void {
  const lines = LIMITS.flatMap(({ ours, peer, holds }) =>
    results
      .filter((result) => holds(result))
      .map((result) => {
        const ratio = spread(ratios(result, ours, peer))
        const { workload, depth } = result
        return { ours, peer, workload, depth, ratio, limit: 1, held: ratio.median >= 1 }
      }),
  )
  if (json) {
    console.log(JSON.stringify({ pace, load, size: SIZE, results, acceptance: lines }, undefined, 2))
    return
  }
  console.log(
    `\nfio, 4 KiB, NBD, ${SIZE} of random data: median (least–most) of ${pace.rounds} rounds of ${pace.seconds} s; ` +
      `load of the machine before: ${figure(load)}`,
  )
  for (const result of results) {
    console.log(`\n${result.workload}, depth ${result.depth}`)
    const of = (name: Name, which: keyof Figures) => result.rounds[name].map((one) => one[which])
    printTable(
      ['target', 'IOPS', 'p50 µs', 'p99 µs', 'of nbdkit', 'of nbdkit, TCP'],
      NAMES.map((name) => [
        name,
        shown(of(name, 'iops')),
        median(of(name, 'p50')),
        median(of(name, 'p99')),
        median(ratios(result, name, 'nbdkit')),
        median(ratios(result, name, 'nbdkit, TCP')),
      ]),
    )
  }
  console.log()
  for (const { ours, peer, workload, depth, ratio, limit, held } of lines)
    console.log(
      `${held ? 'held  ' : 'missed'}  ${ours}, ${workload}, depth ${depth}: ${figure(ratio.median)} × ${peer} ` +
        `(${figure(ratio.least)}–${figure(ratio.most)}; limit ≥ ${limit})`,
    )
}
