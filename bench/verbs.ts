// Verbs in C++ between two processes, each on its core: shm beside UCX over POSIX shared memory, iwarp
// beside UCX over TCP on loopback. Ours and the peer run in turn, so that the machine's drift hits both.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildNativeBenchmarks, type Figures, many, memcpy, pingpong, slots, ucx } from './native-verbs.js'
import { figure, median, printTable } from './table.js'

const ROUNDS = 5
/** No round begins after this much; the lab's part is apart. */
const LAST_ROUND_AFTER_MS = 120_000
const QUEUE_PAIRS = 1000
const MIB = String(2 ** 20)

interface Comparison {
  name: string
  unit: string
  figure: keyof Figures
  peer: string
  /** What ours is held to, given the peer's figure. */
  limit: (peer: number) => number
  /** Whether the limit is an upper one. */
  less: boolean
  ours: () => Promise<Figures>
  theirs: () => Promise<Figures>
}

function comparisons(folder: string): readonly Comparison[] {
  const shm = `shm://${join(folder, 'shm.sock')}`
  const iwarp = 'iwarp://127.0.0.1:0'
  const latency = { unit: 'µs', figure: 'p50Us', less: true } as const
  const bandwidth = { unit: 'MiB/s', figure: 'mebibytesPerSecond', less: false } as const
  const rate = { unit: 'M/s', figure: 'millionPerSecond', less: false } as const
  const quick = ['--iterations', '200000'] as const
  const messages = (chain: number) => ['--iterations', '4000000', '--chain', String(chain)]
  return [
    {
      ...latency,
      name: 'shm WRITE 64 B, one way',
      peer: 'UCX posix ucp_put_lat',
      limit: (peer) => peer * 1.3,
      ours: () => pingpong(shm, 'write-lat', ...quick),
      theirs: () => ucx('posix', 'ucp_put_lat', 64, 200_000),
    },
    {
      ...latency,
      name: 'shm SEND 64 B, one way',
      peer: 'UCX posix tag_lat',
      limit: (peer) => peer,
      ours: () => pingpong(shm, 'send-lat', ...quick),
      theirs: () => ucx('posix', 'tag_lat', 64, 200_000),
    },
    {
      ...rate,
      name: 'shm WRITE 64 B, one each post',
      peer: 'UCX posix ucp_put_bw (limit: 10)',
      limit: () => 10,
      ours: () => pingpong(shm, 'write-rate', ...messages(1)),
      theirs: () => ucx('posix', 'ucp_put_bw', 64, 2_000_000),
    },
    {
      ...rate,
      name: 'shm WRITE 64 B, 16 each post',
      peer: 'UCX posix ucp_put_bw (limit: 10)',
      limit: () => 10,
      ours: () => pingpong(shm, 'write-rate', ...messages(16)),
      theirs: () => ucx('posix', 'ucp_put_bw', 64, 2_000_000),
    },
    {
      ...rate,
      name: 'shm WRITE 64 B from TypeScript, 64 slots each post',
      peer: 'the same from C++, 16 each post (limit: 2)',
      limit: () => 2,
      ours: () => slots(shm, 'many', 4_000_000),
      theirs: () => pingpong(shm, 'write-rate', ...messages(16)),
    },
    {
      name: 'shm WRITE 64 B from TypeScript, post and poll one',
      unit: 'ns',
      figure: 'nanosecondsEach',
      less: true,
      peer: 'the same from C++ (limit: 300 more)',
      limit: (peer) => peer + 300,
      ours: () => slots(shm, 'one', 1_000_000),
      theirs: () => pingpong(shm, 'write-bw', '--size', '64', '--depth', '1', '--iterations', '1000000'),
    },
    {
      ...bandwidth,
      name: 'shm WRITE 1 MiB',
      peer: 'memcpy',
      limit: (peer) => peer * 0.8,
      ours: () => pingpong(shm, 'write-bw', '--size', MIB, '--iterations', '4000'),
      theirs: () => memcpy(4000),
    },
    {
      ...latency,
      name: 'iwarp SEND 64 B, one way',
      peer: 'UCX tcp tag_lat',
      limit: (peer) => peer * 1.1,
      ours: () => pingpong(iwarp, 'send-lat', '--iterations', '50000'),
      theirs: () => ucx('tcp', 'tag_lat', 64, 50_000),
    },
    {
      ...bandwidth,
      name: 'iwarp WRITE 1 MiB',
      peer: 'UCX tcp tag_bw',
      limit: (peer) => peer,
      ours: () => pingpong(iwarp, 'write-bw', '--size', MIB, '--iterations', '2000'),
      theirs: () => ucx('tcp', 'tag_bw', 2 ** 20, 2000),
    },
  ]
}

/** Median and extremes. */
interface Spread {
  median: number
  least: number
  most: number
}

const spread = (samples: readonly number[]): Spread => ({
  median: median(samples),
  least: Math.min(...samples),
  most: Math.max(...samples),
})

const shown = ({ median, least, most }: Spread) => `${figure(median)} (${figure(least)}–${figure(most)})`

export async function verbs({ json }: { json: boolean }): Promise<void> {
  buildNativeBenchmarks()
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-'))
  try {
    const all = comparisons(folder)
    const samples = all.map(() => ({ ours: [] as number[], theirs: [] as number[] }))
    const begin = performance.now()
    let rounds = 0
    for (; rounds < ROUNDS && performance.now() - begin < LAST_ROUND_AFTER_MS; rounds++) {
      for (const [i, { ours, theirs, figure: which }] of all.entries()) {
        samples[i]?.ours.push((await ours())[which])
        samples[i]?.theirs.push((await theirs())[which])
      }
    }
    const results = all.map(({ name, unit, peer, limit, less }, i) => {
      const ours = spread(samples[i]?.ours ?? [])
      const theirs = spread(samples[i]?.theirs ?? [])
      const held = limit(theirs.median)
      return {
        name,
        unit,
        ours,
        peer,
        theirs,
        limit: held,
        share: less ? ours.median / held : held / ours.median,
      }
    })
    const idle = {
      iwarp: await many('iwarp://127.0.0.1:0', QUEUE_PAIRS),
      shm: await many(`shm://${join(folder, 'many.sock')}`, QUEUE_PAIRS),
    }
    if (json) {
      console.log(JSON.stringify({ rounds, results, queuePairs: idle }, undefined, 2))
      return
    }
    console.log(`\nmedian (least–most) of ${rounds} rounds; the limit is held where the last column is ≤ 1`)
    printTable(
      ['what', 'unit', 'rdmakit', 'peer', "peer's", 'limit', 'of limit'],
      results.map((row) => [
        row.name,
        row.unit,
        shown(row.ours),
        row.peer,
        shown(row.theirs),
        row.limit,
        row.share,
      ]),
    )
    console.log(`\n${QUEUE_PAIRS} connected queue pairs of one process, all idle`)
    printTable(
      ['provider', 'depth', 'KiB own, each', 'KiB shared, each', 'processor, %'],
      Object.entries(idle).map(
        ([name, { depth, anonymousKiB, sharedKiB, idleSeconds, processorSeconds }]) => [
          name,
          depth,
          anonymousKiB,
          sharedKiB,
          (100 * processorSeconds) / idleSeconds,
        ],
      ),
    )
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
