// What the ring is held to, and what a run gave.
import { figure } from '../table.js'
import type { Figures } from './measure.js'

/** A figure and its limit. */
export interface Line {
  what: string
  value: number
  unit: string
  limit: number
  /** whether the limit is an upper one */
  less: boolean
  held: boolean
}

export function line(what: string, value: number, unit: string, bound: '≤' | '≥', limit: number): Line {
  const less = bound === '≤'
  // Without a figure nothing is held.
  return { what, value, unit, limit, less, held: less ? value <= limit : value >= limit }
}

/** @param of the figures of a case with one size */
export function acceptance(of: (name: string, size: number) => Figures, memcpyMiBs: number): Line[] {
  const shm = of('ring shm, polling', 64)
  const iwarp = of('ring iwarp, polling', 64)
  const asleep = of('ring iwarp, event loop', 64)
  const net = of('net', 64)
  const coalesced = of('net, coalesced', 64)
  const million = 1e6
  const large = of('shm STEP3 ring, polling program, no copies', 2 ** 20).mebibytesPerSecond
  return [
    line('shm, polling: round trip of 64 B, p50', shm.p50, 'µs', '≤', 2),
    line('shm, polling: how much below net', net.p50 / shm.p50, 'times', '≥', 8),
    line('iwarp, polling: round trip of 64 B, p50, beside net', iwarp.p50, 'µs', '≤', net.p50),
    line(
      'iwarp, event loop: round trip of 64 B, p50, beside 1.2 × net',
      asleep.p50,
      'µs',
      '≤',
      1.2 * net.p50,
    ),
    line('shm: messages of 64 B', shm.messagesPerSecond / million, 'M/s', '≥', 5),
    line(
      'iwarp: messages of 64 B, beside 2 × net with frames',
      iwarp.messagesPerSecond / million,
      'M/s',
      '≥',
      (2 * net.messagesPerSecond) / million,
    ),
    line(
      'the same beside 2 × net whose frames the program copies together',
      iwarp.messagesPerSecond / million,
      'M/s',
      '≥',
      (2 * coalesced.messagesPerSecond) / million,
    ),
    line('shm: 1 MiB without copies, of memcpy', (100 * large) / memcpyMiBs, '%', '≥', 70),
  ]
}

export function printLines(lines: readonly Line[]): void {
  for (const { what, value, unit, limit, less, held } of lines)
    console.log(
      `${held ? 'held  ' : 'missed'}  ${what}: ${figure(value)} ${unit} (limit ${less ? '≤' : '≥'} ${figure(limit)})`,
    )
}
