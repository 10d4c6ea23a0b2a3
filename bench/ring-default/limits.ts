// The limits of the ring without options: Node's sockets, at each size, in each placement.
import type { Limit } from '../core/report.js'
import type { Samples } from '../core/rounds.js'
import { ratios } from '../core/statistics.js'
import { type Cell, groupOf, IWARP, NET, SHM, UNIX } from './cells.js'

/** The peer for each limit, and the fraction of its speed. */
const HELD = [
  { ours: SHM, peer: NET, speed: 1 },
  { ours: SHM, peer: UNIX, speed: 1 },
  { ours: IWARP, peer: NET, speed: 1 },
  // Nothing that goes through TCP beside it has less to do than a Unix socket.
  { ours: IWARP, peer: UNIX, speed: 0.85 },
] as const

/** How much longer than the peer's the slowest of a hundred round trips may take. */
const TAIL = 1.1

/** Where the rate of messages is called bandwidth. */
const LARGE = 32_768

export const limits = (cells: readonly Cell[], samples: Samples): Limit[] =>
  cells.flatMap((cell) => HELD.flatMap((held) => limitsOf(cell, held, samples)))

function limitsOf(cell: Cell, { ours, peer, speed }: (typeof HELD)[number], samples: Samples): Limit[] {
  const of = (name: string, figure: string) => samples.of(groupOf(cell), name, figure)
  const limit = (what: string, rounds: readonly number[], bound: Limit['bound'], value: number): Limit => ({
    what: `${ours}, ${groupOf(cell)}: ${what}`,
    rounds,
    unit: `× ${peer}`,
    bound,
    limit: value,
  })
  // Speeds, so that more is better in all but the tail.
  return [
    limit('speed of a round trip, p50', ratios(of(peer, 'p50'), of(ours, 'p50')), '≥', speed),
    limit('round trip, p99', ratios(of(ours, 'p99'), of(peer, 'p99')), '≤', TAIL),
    limit(
      cell.size < LARGE ? 'rate' : 'bandwidth',
      ratios(of(ours, 'messagesPerSecond'), of(peer, 'messagesPerSecond')),
      '≥',
      speed,
    ),
  ]
}
