// Messages from JavaScript to JavaScript, between two processes of one machine: the ring over shm and iwarp
// in each way of waiting, beside Node's sockets and zeromq.js, in one run, in turn.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { acceptance, printLines } from './ring/acceptance.js'
import { CASES, SIZES, STEP_CASES } from './ring/cases.js'
import { type Cell, type Figures, figuresOf, measure, memcpy, type Pace } from './ring/measure.js'
import { printSteps } from './ring/steps.js'
import { median, printTable } from './table.js'

const PACE: Pace = { rounds: 3, milliseconds: 200, lastRoundAfterMs: 600_000 }
const QUICK: Pace = { rounds: 1, milliseconds: 60, lastRoundAfterMs: 0 }

const NONE: Figures = {
  p50: Number.NaN,
  p99: Number.NaN,
  p999: Number.NaN,
  mean: Number.NaN,
  messagesPerSecond: Number.NaN,
  mebibytesPerSecond: Number.NaN,
}

export async function ring({ json, quick }: { json: boolean; quick: boolean }): Promise<void> {
  const pace = quick ? QUICK : PACE
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-'))
  try {
    const copies = [await memcpy(pace.milliseconds)]
    const cells = await measure([...CASES, ...STEP_CASES], folder, pace)
    while (copies.length < pace.rounds) copies.push(await memcpy(pace.milliseconds))
    const memcpyMiBs = median(copies.map(({ mebibytesPerSecond }) => mebibytesPerSecond))
    const of = (name: string, size: number): Figures => {
      const cell = cells.find((one) => one.name === name && one.size === size)
      return cell === undefined ? NONE : figuresOf(cell)
    }
    const lines = acceptance(of, memcpyMiBs)
    if (json) {
      const results = cells.map((cell) => ({ ...cell, median: figuresOf(cell) }))
      console.log(JSON.stringify({ pace, results, memcpy: copies, acceptance: lines }, undefined, 2))
      return
    }
    for (const size of SIZES) print(size, cells, of)
    printSteps(of)
    console.log(`\nBuffer.copy of 1 MiB through 4 MiB: ${Math.round(memcpyMiBs)} MiB/s\n`)
    printLines(lines)
    for (const { name, size, failures } of cells)
      for (const failure of failures) console.log(`failed: ${name}, ${size} B: ${failure}`)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function print(size: number, cells: readonly Cell[], of: (name: string, size: number) => Figures): void {
  const net = of('net', size)
  console.log(`\n${size} B: round trip in µs, and messages one way; medians of the rounds`)
  printTable(
    ['transport', 'p50', 'p99', 'p99.9', 'messages/s', 'MiB/s', 'net p50 / p50', 'rate / net rate'],
    CASES.filter(({ name }) => cells.some((cell) => cell.name === name && cell.size === size)).map(
      ({ name }) => {
        const { p50, p99, p999, messagesPerSecond, mebibytesPerSecond } = of(name, size)
        const rate = messagesPerSecond / net.messagesPerSecond
        return [name, p50, p99, p999, messagesPerSecond, mebibytesPerSecond, net.p50 / p50, rate]
      },
    ),
  )
}
