// Runs cases in turn, each with two processes of its own.
import { execFile } from 'node:child_process'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Child } from '../child.js'
import { median } from '../table.js'
import type { Case } from './cases.js'
import type { Latency, Rate } from './traffic.js'

const DEADLINE_MS = 60_000
const run = promisify(execFile)
const script = (name: string) => fileURLToPath(new URL(`${name}.js`, import.meta.url))

/** What one run of a case with one size gave. */
export interface Sample {
  latency?: Latency
  rate: Rate
}

/** All runs of a case with one size. */
export interface Cell {
  name: string
  size: number
  samples: Sample[]
  /** why a run gave nothing */
  failures: string[]
}

export interface Pace {
  rounds: number
  /** for each thing that is timed */
  milliseconds: number
  /** no round begins after this much */
  lastRoundAfterMs: number
}

/**
 * Every case with every size, `rounds` times. Within a round the cases of one size come one after the
 * other, so that the machine's drift hits all of them.
 */
export async function measure(
  cases: readonly Case[],
  folder: string,
  { rounds, milliseconds, lastRoundAfterMs }: Pace,
): Promise<Cell[]> {
  const sizes = [...new Set(cases.flatMap((one) => one.sizes))].sort((a, b) => a - b)
  const cells = sizes.flatMap((size) =>
    cases
      .filter((one) => one.sizes.includes(size))
      .map((one) => ({ one, cell: { name: one.name, size, samples: [], failures: [] } as Cell })),
  )
  const begin = performance.now()
  for (let round = 0; round < rounds; round++) {
    if (round > 0 && performance.now() - begin > lastRoundAfterMs) break
    for (const { one, cell } of cells) {
      try {
        cell.samples.push(await pair(one, cell.size, folder, milliseconds))
      } catch (failure) {
        cell.failures.push((failure as Error).message)
      }
    }
  }
  return cells.map(({ cell }) => cell)
}

async function pair(one: Case, size: number, folder: string, milliseconds: number): Promise<Sample> {
  for (const socket of ['unix.sock', 'shm.sock', 'zeromq.ipc']) rmSync(join(folder, socket), { force: true })
  const peer = script('peer')
  await using listening = new Child(process.execPath, [
    peer,
    'listen',
    one.transport,
    one.at(folder),
    String(size),
  ])
  const [, uri] = await listening.prints(/^listening (\S+)$/m)
  const tests = one.rateOnly === true ? 'rate' : 'both'
  const { stdout } = await run(
    process.execPath,
    [peer, 'connect', one.transport, uri as string, String(size), String(milliseconds), tests],
    { timeout: DEADLINE_MS, killSignal: 'SIGKILL' },
  )
  return JSON.parse(stdout)
}

/** Copies of 1 MiB in this machine's memory, in a process of their own. */
export async function memcpy(milliseconds: number): Promise<Rate> {
  const { stdout } = await run(process.execPath, [script('memcpy'), String(milliseconds)], {
    timeout: DEADLINE_MS,
  })
  return JSON.parse(stdout)
}

/** Medians over the runs of a cell; NaN where it has none. */
export interface Figures {
  p50: number
  p99: number
  p999: number
  mean: number
  messagesPerSecond: number
  mebibytesPerSecond: number
}

export function figuresOf({ samples }: Cell): Figures {
  const latency = (key: 'p50' | 'p99' | 'p999' | 'mean') =>
    median(samples.flatMap(({ latency }) => (latency === undefined ? [] : [latency[key]])))
  const rate = (key: 'messagesPerSecond' | 'mebibytesPerSecond') =>
    median(samples.map(({ rate }) => rate[key]))
  return {
    p50: latency('p50'),
    p99: latency('p99'),
    p999: latency('p999'),
    mean: latency('mean'),
    messagesPerSecond: rate('messagesPerSecond'),
    mebibytesPerSecond: rate('mebibytesPerSecond'),
  }
}
