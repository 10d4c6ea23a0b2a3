// The limits of the ring.
import type { Limit } from '../core/report.js'
import type { Samples } from '../core/rounds.js'
import { ratios } from '../core/statistics.js'
import { groupOf, MEMCPY } from './cases.js'

const MILLION = 1e6

export function limits(samples: Samples): Limit[] {
  const p50 = (name: string) => samples.of(groupOf(64), name, 'p50')
  const rate = (name: string) => samples.of(groupOf(64), name, 'messagesPerSecond')
  const mebibytes = (name: string) => samples.of(groupOf(2 ** 20), name, 'mebibytesPerSecond')
  const limit = (
    what: string,
    rounds: readonly number[],
    unit: string,
    bound: '≤' | '≥',
    value: number,
  ): Limit => ({ what, rounds, unit, bound, limit: value })

  const [shm, iwarp] = ['ring shm, polling', 'ring iwarp, polling']
  return [
    limit('shm, polling: round trip of 64 B, p50', p50(shm), 'µs', '≤', 2),
    limit('shm, polling: how much below net', ratios(p50('net'), p50(shm)), 'times', '≥', 8),
    limit('iwarp, polling: round trip of 64 B, p50', ratios(p50(iwarp), p50('net')), '× net', '≤', 1),
    limit(
      'iwarp, event loop: round trip of 64 B, p50',
      ratios(p50('ring iwarp, event loop'), p50('net')),
      '× net',
      '≤',
      1.2,
    ),
    limit(
      'shm: messages of 64 B',
      rate(shm).map((messages) => messages / MILLION),
      'M/s',
      '≥',
      5,
    ),
    limit('iwarp: messages of 64 B', ratios(rate(iwarp), rate('net')), '× net with frames', '≥', 2),
    ...[shm, iwarp].map((polling) =>
      limit(
        `${polling}: messages of 64 B`,
        ratios(rate(polling), rate('net, coalesced')),
        '× net whose frames the program copies together',
        '≥',
        0.8,
      ),
    ),
    limit(
      'shm: 1 MiB without copies',
      ratios(mebibytes('shm STEP3 ring, polling program, no copies'), mebibytes(MEMCPY)),
      `× ${MEMCPY}`,
      '≥',
      0.7,
    ),
  ]
}
