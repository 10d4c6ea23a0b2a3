import { iserSwap } from './iser-swap.js'
import type { LabParts } from './lab-parts.js'
import { nbdkitSwap } from './nbdkit-swap.js'
import { nvmeRdmaSwap, nvmeTcpSwap } from './nvmf-swap.js'
import { GuestPair } from './pair.js'
import { spread } from './perftest.js'
import { busySeconds, cpuTimeOf } from './process-time.js'
import { rdmakitPath } from './remote-swap.js'
import { type Walk, WalkKilledError, walkArray } from './swap.js'
import type { SwapPath } from './swap-path.js'

const mebibyte = 1024 * 1024
/** Walks that the out-of-memory killer may end, before a round is given up; ours is an error then. */
const mostKilled = 2
const warmUpBytes = 16 * mebibyte
const walkDeadlineMs = 600_000 // a machine that does much else

export interface SwapBenchOptions {
  /** How often each path is measured. */
  rounds: number
  /** Size of the array; its memory is limited to half of it. */
  mebibytes: number
  /** Processors of each guest. With one, what a client does itself is time that the program does not have. */
  cpus: number
  /** Prints one line of JSON, with every round, in place of the table. */
  json: boolean
}

/** Ours has to take less time than those with a limit. */
const peers: readonly { path: SwapPath; limited: boolean }[] = [
  { path: iserSwap, limited: true },
  { path: nvmeRdmaSwap, limited: true },
  { path: nbdkitSwap, limited: true },
  { path: nvmeTcpSwap, limited: false },
]

interface Round extends Walk {
  /** CPU seconds for 10⁹ bytes that travelled: of the whole server, and of its process if it has one. */
  serverPerGigabyte: number
  processPerGigabyte?: number
  /** Walks before this one that the out-of-memory killer ended. */
  killed: number
}

interface Result {
  name: string
  limited: boolean
  /** undefined: nothing but killed walks. */
  rounds: readonly (Round | undefined)[]
}

/**
 * The thesis's micro-benchmark, 256 MiB under a limit of 128 MiB, between two guests on one wire: our
 * remote swap over rxe, then what it is compared with, in turn, so that the machine's drift hits all.
 */
export async function swapBench(
  parts: LabParts,
  print: (line: string) => void,
  { rounds, mebibytes, cpus, json }: SwapBenchOptions,
): Promise<void> {
  await using pair = await GuestPair.boot(parts, { server: { cpus }, client: { cpus } })
  print(
    `two guests, ${cpus === 1 ? 'one processor' : `${cpus} processors`} each; an array of ${mebibytes} MiB`,
  )
  await pair.client.run(['sh', 'test/lab/guest/nbd.sh'])
  const paths = [{ path: rdmakitPath, limited: false }, ...peers]
  const results = paths.map(({ path, limited }) => ({
    name: path.name,
    limited,
    rounds: [] as (Round | undefined)[],
  }))
  for (let round = 0; round < rounds; round++)
    // Each round begins with another one.
    for (const i of [...paths.keys()].map((nth) => (nth + round) % paths.length)) {
      const { path } = paths[i] as (typeof paths)[number]
      const measured = await measure(pair, path, parts.arrayWalk, mebibytes * mebibyte).catch((error) => {
        if (path === rdmakitPath) throw error
        unlessKilled(error)
        return undefined
      })
      print(measured ? line(path.name, measured) : `${path.name.padEnd(18)} killed, out of memory, each time`)
      results[i]?.rounds.push(measured)
    }
  if (json) console.log(JSON.stringify({ mebibytes, cpus, results }))
  else for (const row of table(results)) print(row)
}

async function measure(pair: GuestPair, path: SwapPath, program: string, bytes: number): Promise<Round> {
  const { server, client } = pair
  const place = { server, client, address: GuestPair.serverAddress, bytes: 2 * bytes }
  return await path.withSwap(place, async () => {
    // An emulator translates code when it first runs, which the first path of a boot would pay for all.
    const small = Math.min(bytes, warmUpBytes)
    await walkArray(client, { program, bytes: small, limitBytes: small / 2 }).catch(unlessKilled)
    for (let killed = 0; ; killed++) {
      try {
        return { ...(await measureWalk(pair, path, program, bytes)), killed }
      } catch (error) {
        unlessKilled(error)
        if (killed === mostKilled) throw error
      }
    }
  })
}

function unlessKilled(error: unknown): void {
  if (!(error instanceof WalkKilledError)) throw error
}

async function measureWalk(
  { server, client }: GuestPair,
  path: SwapPath,
  program: string,
  bytes: number,
): Promise<Omit<Round, 'killed'>> {
  const before = await used(server, path)
  const walk = await walkArray(client, { program, bytes, limitBytes: bytes / 2, deadlineMs: walkDeadlineMs })
  const after = await used(server, path)
  if (walk.wrongPages > 0) throw new Error(`${path.name}: ${walk.wrongPages} pages came back wrong`)
  // What does not fit has to leave and come back once at the very least, less what the kernel kept.
  const least = (0.9 * (bytes / 2)) / 4096
  if (walk.pagesOut < least || walk.pagesIn < least) throw new Error(`${path.name}: the walk hardly swapped`)
  const gigabytes = ((walk.pagesOut + walk.pagesIn) * 4096) / 1e9
  const perGigabyte = (key: 'machine' | 'process') => (after[key] - before[key]) / gigabytes
  return {
    ...walk,
    serverPerGigabyte: perGigabyte('machine'),
    ...(path.serverProcess !== undefined && { processPerGigabyte: perGigabyte('process') }),
  }
}

/** CPU seconds of the server so far. Looking at them costs it some hundredths itself. */
async function used(
  server: GuestPair['server'],
  path: SwapPath,
): Promise<{ machine: number; process: number }> {
  const machine = await busySeconds(server)
  const process = path.serverProcess === undefined ? undefined : await cpuTimeOf(server, path.serverProcess)
  return { machine, process: process ? process.user + process.system : 0 }
}

function line(name: string, round: Round): string {
  const { seconds, writeSeconds, readSeconds, pagesOut, pagesIn, wrongPages, serverPerGigabyte, killed } =
    round
  const times = `${seconds.toFixed(1)} s (write ${writeSeconds.toFixed(1)}, read ${readSeconds.toFixed(1)})`
  const pages = `${pagesOut} pages out, ${pagesIn} in, ${wrongPages} wrong`
  return `${name.padEnd(18)} ${times}, ${pages}, server's CPU ${serverPerGigabyte.toFixed(1)} s/GB${
    killed > 0 ? `, ${killed} killed before` : ''
  }`
}

/** Medians of the rounds; the ratio is the median of ours to theirs of the same round. */
function table(results: readonly Result[]): string[] {
  const row = (...cells: readonly string[]) =>
    cells.map((cell, column) => (column === 0 ? cell.padEnd(18) : cell.padStart(13))).join('')
  const ours = results[0]?.rounds ?? []
  const rows = results.map(({ name, limited, rounds }, i) => {
    const whole = rounds.filter((round) => round !== undefined)
    const median = (of: (round: Round) => number) => spread(whole.map(of)).median
    const ratio = spread(
      rounds.flatMap((round, n) => (round ? [(ours[n]?.seconds ?? Number.NaN) / round.seconds] : [])),
    ).median
    const process = median(({ processPerGigabyte = Number.NaN }) => processPerGigabyte)
    const show = (value: number, digits = 1) => (Number.isNaN(value) ? '–' : value.toFixed(digits))
    return row(
      name,
      show(median(({ seconds }) => seconds)),
      show(median(({ writeSeconds }) => writeSeconds)),
      show(median(({ readSeconds }) => readSeconds)),
      show(median(({ serverPerGigabyte }) => serverPerGigabyte)),
      show(process, 2),
      i === 0 ? '–' : show(ratio, 2),
      !limited || Number.isNaN(ratio) ? '–' : ratio < 1 ? 'held' : 'missed',
    )
  })
  return [
    row('', 'seconds', 'write', 'read', 'server s/GB', 'process s/GB', 'ours/theirs', 'limit < 1'),
    ...rows,
  ]
}
