import { busySeconds, cpuTimeOf } from '../base/process-time.js'
import { Guest } from '../machine/guest.js'
import type { LabParts } from '../machine/lab-parts.js'
import { GuestPair } from '../machine/pair.js'
import { iserSwap } from '../swap/iser-swap.js'
import { nbdkitSwap } from '../swap/nbdkit-swap.js'
import { nvmeRdmaSwap, nvmeTcpSwap } from '../swap/nvmf-swap.js'
import { rdmakitPaths } from '../swap/remote-swap.js'
import { type Walk, WalkKilledError, walkArray } from '../swap/swap.js'
import type { SwapPath, SwapPlace } from '../swap/swap-path.js'
import { inTurn, type Report, ratios, report } from './perftest.js'

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
  /** 2: server and client in a guest each, on one wire. 1: both in one, over Soft-RoCE's own loopback. */
  guests: number
  /** Processors of each guest. With one, what a client does itself is time that the program does not have. */
  cpus: number
}

type Road = keyof typeof rdmakitPaths
const roads = Object.keys(rdmakitPaths) as Road[]
const ours: readonly SwapPath[] = [...rdmakitPaths.rdma, ...rdmakitPaths.iwarp]

/** `limit`: how long a walk may take over the better of our two fronts, in times of the peer's. */
interface Peer {
  readonly path: SwapPath
  readonly limit: Partial<Record<Road, number>>
}

/** TCP is compared with TCP, and RDMA with RDMA. nbdkit is what many would use instead of either. */
const peers: readonly Peer[] = [
  { path: iserSwap, limit: { rdma: 0.85 } },
  { path: nvmeRdmaSwap, limit: { rdma: 0.85 } },
  { path: nbdkitSwap, limit: { rdma: 0.95, iwarp: 0.95 } },
  { path: nvmeTcpSwap, limit: { iwarp: 1 } },
]

/** Of what any peer's server takes for a gigabyte. */
const limitOfServer = 0.25

interface Round extends Walk {
  /**
   * CPU seconds for 10⁹ bytes that travelled: of the server's whole guest, which in one guest is the walk's
   * too, and of its process if it has one.
   */
  serverPerGigabyte: number
  processPerGigabyte?: number
  /** Walks before this one that the out-of-memory killer ended. */
  killed: number
}

/** undefined: nothing but killed walks. */
type Rounds = readonly (Round | undefined)[]
type Results = ReadonlyMap<SwapPath, Rounds>

/** Where the memory is and where the walk is: two guests, or one that is both. */
type Hosts = Pick<SwapPlace, 'server' | 'client' | 'address'> & AsyncDisposable

/**
 * The thesis's micro-benchmark, 256 MiB under a limit of 128 MiB, between two guests on one wire or in one
 * guest: our remote swap over rxe and over TCP, then what it is compared with, in turn, so that the machine's drift hits
 * all.
 */
export async function swapBench(
  parts: LabParts,
  print: (line: string) => void,
  { rounds, mebibytes, guests, cpus }: SwapBenchOptions,
): Promise<Report> {
  if (guests > 2) throw new Error('--guests is 1 or 2: the server and the client are in one, or in one each')
  await using hosts = await (guests === 1 ? bootOne : bootTwo)(parts, cpus)
  const processors = `${cpus === 1 ? 'one processor' : `${cpus} processors`}`
  const where = guests === 1 ? `one guest, ${processors}` : `two guests, ${processors} each`
  print(`${where}; an array of ${mebibytes} MiB`)
  await hosts.client.run(['sh', 'test/lab/guest/nbd.sh'])
  await hosts.client.run(['sh', 'test/lab/guest/ublk.sh', parts.modules.ublk])
  const paths = [...ours, ...peers.map(({ path }) => path)]
  const samples = await inTurn(
    rounds,
    paths.map((path) => async () => {
      const round = await measure(hosts, path, parts.arrayWalk, mebibytes * mebibyte).catch((error) => {
        if (ours.includes(path)) throw error
        unlessKilled(error)
        return undefined
      })
      print(round ? line(path.name, round) : `${path.name.padEnd(20)} killed, out of memory, each time`)
      return round
    }),
  )
  const results: Results = new Map(paths.map((path, i) => [path, samples[i] ?? []]))
  return report({
    suite: 'lab swap',
    about: `a walk through an array of ${mebibytes} MiB under a limit of half of it; ${where}`,
    rounds,
    tables: [table(results)],
    limits: limits(results),
  })
}

async function bootTwo(parts: LabParts, cpus: number): Promise<Hosts> {
  const pair = await GuestPair.boot(parts, { server: { cpus }, client: { cpus } })
  const [dispose, address] = [() => pair.powerOff(), GuestPair.serverAddress]
  return { server: pair.server, client: pair.client, address, [Symbol.asyncDispose]: dispose }
}

async function bootOne(parts: LabParts, cpus: number): Promise<Hosts> {
  const guest = await Guest.boot(parts, { cpus })
  const [dispose, address] = [() => guest.powerOff(), GuestPair.serverAddress]
  await guest.run(['sh', 'test/lab/guest/rxe.sh', 'veth', address])
  return { server: guest, client: guest, address, [Symbol.asyncDispose]: dispose }
}

async function measure(hosts: Hosts, path: SwapPath, program: string, bytes: number): Promise<Round> {
  const { server, client, address } = hosts
  const place = { server, client, address, bytes: 2 * bytes }
  return await path.withSwap(place, async () => {
    // An emulator translates code when it first runs, which the first path of a boot would pay for all.
    const small = Math.min(bytes, warmUpBytes)
    await walkArray(client, { program, bytes: small, limitBytes: small / 2 }).catch(unlessKilled)
    for (let killed = 0; ; killed++) {
      try {
        return { ...(await measureWalk(hosts, path, program, bytes)), killed }
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
  { server, client }: Hosts,
  path: SwapPath,
  program: string,
  bytes: number,
): Promise<Omit<Round, 'killed'>> {
  const before = await used(server, path)
  const walk = await walkArray(client, { program, bytes, limitBytes: bytes / 2, deadlineMs: walkDeadlineMs })
  const after = await used(server, path)
  if (walk.wrongPages > 0) throw new Error(`${path.name}: ${walk.wrongPages} pages came back wrong`)
  // Pages that do not fit have to leave and come back at least once, less those that the kernel kept.
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
async function used(server: Hosts['server'], path: SwapPath): Promise<{ machine: number; process: number }> {
  const machine = await busySeconds(server)
  const process = path.serverProcess === undefined ? undefined : await cpuTimeOf(server, path.serverProcess)
  return { machine, process: process ? process.user + process.system : 0 }
}

function line(name: string, round: Round): string {
  const { seconds, writeSeconds, readSeconds, pagesOut, pagesIn, wrongPages, serverPerGigabyte, killed } =
    round
  const times = `${seconds.toFixed(1)} s (write ${writeSeconds.toFixed(1)}, read ${readSeconds.toFixed(1)})`
  const pages = `${pagesOut} pages out, ${pagesIn} in, ${wrongPages} wrong`
  return `${name.padEnd(20)} ${times}, ${pages}, server's CPU ${serverPerGigabyte.toFixed(1)} s/GB${
    killed > 0 ? `, ${killed} killed before` : ''
  }`
}

const figures = (rounds: Rounds | undefined, of: (round: Round) => number) =>
  (rounds ?? []).map((round) => (round === undefined ? Number.NaN : of(round)))
const seconds = (rounds?: Rounds) => figures(rounds, (round) => round.seconds)
const ofServer = (rounds?: Rounds) => figures(rounds, (round) => round.serverPerGigabyte)

/** The faster of a road's two fronts, by all rounds. */
function better(road: Road, results: Results): SwapPath {
  const [nbd, ublk] = rdmakitPaths[road]
  const sum = (path: SwapPath) => seconds(results.get(path)).reduce((total, one) => total + one, 0)
  return sum(ublk) < sum(nbd) ? ublk : nbd
}

/** A ratio is of ours to theirs. */
function table(results: Results): Report['tables'][number] {
  const best = roads.map((road) => seconds(results.get(better(road, results))))
  return {
    title:
      'in seconds; the server in CPU seconds for each gigabyte that travelled; ours with the better front',
    columns: [
      ...['path', 'seconds', 'write', 'read', 'server s/GB', 'process s/GB'],
      ...roads.map((road) => `${road}/theirs`),
      'killed',
    ],
    rows: [...results].map(([path, rounds]) => [
      path.name,
      seconds(rounds),
      figures(rounds, ({ writeSeconds }) => writeSeconds),
      figures(rounds, ({ readSeconds }) => readSeconds),
      ofServer(rounds),
      figures(rounds, ({ processPerGigabyte = Number.NaN }) => processPerGigabyte),
      ...best.map((own) => (ours.includes(path) ? '' : ratios(own, seconds(rounds)))),
      rounds.reduce((sum, round) => sum + (round?.killed ?? mostKilled + 1), 0),
    ]),
  }
}

function limits(results: Results): Report['limits'] {
  return roads.flatMap((road) => {
    const front = better(road, results)
    const beside = (path: SwapPath, figure: string, of: (rounds?: Rounds) => number[], limit: number) => ({
      what: `${front.name}: ${figure}`,
      rounds: ratios(of(results.get(front)), of(results.get(path))),
      unit: `× ${path.name}`,
      bound: '≤' as const,
      limit,
    })
    return peers.flatMap(({ path, limit }) => [
      ...(limit[road] === undefined ? [] : [beside(path, 'a walk', seconds, limit[road])]),
      beside(path, "server's CPU", ofServer, limitOfServer),
    ])
  })
}
