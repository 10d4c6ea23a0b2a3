// The limits of our figures. Checksums are on.
import type { Limit } from '../core/report.js'
import type { Samples } from '../core/rounds.js'
import { ratios } from '../core/statistics.js'
import type { Name } from './targets.js'
import { WORKLOADS, type Workload } from './workloads.js'

interface Held {
  readonly ours: Name
  readonly peer: Name
  /** How many times the peer's IOPS; none where it is not held to it. */
  readonly least: (workload: Workload) => number | undefined
}

const HELD: readonly Held[] = [
  { ours: 'shm', peer: 'nbdkit', least: ({ pages }) => (pages ? 1.2 : undefined) },
  { ours: 'shm', peer: 'qemu-nbd, tmpfs', least: ({ pages }) => (pages ? 2 : undefined) },
  // It moves no data: the most that a server of NBD in another process reaches.
  {
    ours: 'shm',
    peer: 'qemu-nbd, null-co',
    least: ({ pages, depth }) => (!pages ? undefined : depth === 1 ? 1 : depth === 32 ? 0.9 : undefined),
  },
  { ours: 'iwarp', peer: 'nbdkit, TCP', least: () => 1 },
]

export const limits = (samples: Samples): Limit[] =>
  HELD.flatMap(({ ours, peer, least }) =>
    WORKLOADS.flatMap((workload) => {
      const limit = least(workload)
      if (limit === undefined) return []
      const of = (name: Name) => samples.of(workload.name, name, 'iops')
      const rounds = ratios(of(ours), of(peer))
      return [{ what: `${ours}, ${workload.name}`, rounds, unit: `× ${peer}`, bound: '≥', limit } as const]
    }),
  )
