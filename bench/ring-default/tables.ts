// A table for each kind of traffic and placement: the transports of each size side by side.
import type { Table, Value } from '../core/report.js'
import type { Samples } from '../core/rounds.js'
import { ratios } from '../core/statistics.js'
import { type Cell, casesOf, groupOf, NET, NET_COALESCED, PLACEMENTS, UNIX } from './cells.js'

const scaled = (rounds: readonly number[], factor: number) => rounds.map((value) => value * factor)

export const tables = (cells: readonly Cell[], samples: Samples): Table[] =>
  (['messages', 'requests'] as const).flatMap((kind) =>
    PLACEMENTS.map((placement): Table => {
      const some = cells.filter((cell) => cell.kind === kind && cell.placement === placement)
      const coalesced = kind === 'messages' ? ['rate of net, coalesced'] : []
      return {
        title: `${kind}, ${placement.name}: round trip in µs; more than 1 of another's is better, but of its p99`,
        columns: [
          ...['size, transport', 'p50', 'p99', '1000/s', 'MiB/s'],
          ...[NET, UNIX].flatMap((peer) => [`speed of ${peer}`, `p99 of ${peer}`, `rate of ${peer}`]),
          ...coalesced,
        ],
        rows: some.flatMap((cell) => rowsOf(cell, samples)),
      }
    }),
  )

function rowsOf(cell: Cell, samples: Samples): Value[][] {
  const of = (name: string, figure: string) => samples.of(groupOf(cell), name, figure)
  return casesOf(cell).map(({ name, peer }): Value[] => {
    const [p50, p99, rate] = [of(name, 'p50'), of(name, 'p99'), of(name, 'messagesPerSecond')]
    const figures = [`${cell.size} B, ${name}`, p50, p99, scaled(rate, 1e-3), of(name, 'mebibytesPerSecond')]
    const beside = [NET, UNIX].flatMap((other) => [
      ratios(of(other, 'p50'), p50),
      ratios(p99, of(other, 'p99')),
      ratios(rate, of(other, 'messagesPerSecond')),
    ])
    const coalesced = cell.kind === 'messages' ? [ratios(rate, of(NET_COALESCED, 'messagesPerSecond'))] : []
    // A peer beside a peer says nothing, and a row is as long as the others.
    const compared: Value[] = [...beside, ...coalesced]
    return [...figures, ...(peer === true ? compared.map(() => '') : compared)]
  })
}
