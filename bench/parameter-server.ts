// examples/parameter-server over each of its transports: how long it takes two workers to push the gradients of
// ResNet-50 and to pull its weights.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Build } from './against/build.js'
import { Child, run } from './core/child.js'
import type { Report, Value } from './core/report.js'
import type { Figures, Samples } from './core/rounds.js'
import { median, ratios } from './core/statistics.js'
import type { Place, Suite } from './suite.js'

const GROUP = 'iteration'
const FIGURE = 'milliseconds'
const RING_SHM = 'ring shm'
const WORKERS = 2
const PARAMETERS = 25_557_032
const MEBIBYTES = (2 * WORKERS * PARAMETERS * 4) / 2 ** 20
const ITERATIONS = 20
const QUICK_ITERATIONS = 5
/** The first iterations touch the memory for the first time. */
const WARM_UP = 2
const DEADLINE_MS = 120_000

interface Transport {
  readonly name: string
  readonly at: (folder: string) => string
  readonly peer?: boolean
  /** copies of a byte that is pushed and of one that is pulled: by the program or the library, and beneath */
  readonly pushed: string
  readonly pulled: string
}

const TRANSPORTS: readonly Transport[] = [
  { name: RING_SHM, at: (folder) => `shm://${folder}/shm.sock`, pushed: '0 + 1', pulled: '2 + 1' },
  { name: 'ring iwarp', at: () => 'iwarp://127.0.0.1:0', pushed: '0 + 2', pulled: '2 + 2' },
  {
    name: 'zeromq ipc',
    at: (folder) => `zeromq+ipc://${folder}/zeromq.ipc`,
    peer: true,
    pushed: '0 + 2',
    pulled: '1 + 2',
  },
  { name: 'zeromq tcp', at: () => 'zeromq+tcp://127.0.0.1:*', peer: true, pushed: '0 + 2', pulled: '1 + 2' },
  { name: 'net', at: () => 'tcp://127.0.0.1:0', peer: true, pushed: '1 + 2', pulled: '1 + 2' },
  {
    name: 'unix',
    at: (folder) => `unix://${folder}/unix.sock`,
    peer: true,
    pushed: '1 + 2',
    pulled: '1 + 2',
  },
]

export function parameterServer({ folder, quick }: Place): Suite {
  const iterations = quick ? QUICK_ITERATIONS : ITERATIONS
  return {
    name: 'parameter-server',
    about:
      `${WORKERS} workers push ${PARAMETERS} gradients and pull as many weights, each of which is checked; ` +
      `a sample is the median of ${iterations - WARM_UP} iterations`,
    figures: [{ key: FIGURE, name: 'iteration', unit: 'ms', better: 'lower' }],
    groups: (build) => {
      const candidates = TRANSPORTS.map(({ name, at, peer = false }) => ({
        name,
        peer,
        measure: () => sample(build, at, folder, iterations),
      }))
      return [{ name: GROUP, seconds: 3 + iterations / 4, candidates }]
    },
    report,
  }
}

function report(samples: Samples): Pick<Report, 'tables' | 'limits'> {
  const of = (name: string) => samples.of(GROUP, name, FIGURE)
  const quickest = TRANSPORTS.filter(({ peer }) => peer).reduce((least, one) =>
    median(of(one.name)) < median(of(least.name)) ? one : least,
  ).name
  const rows = TRANSPORTS.map(({ name, pushed, pulled }): Value[] => [
    name,
    of(name),
    of(name).map((milliseconds) => MEBIBYTES / (milliseconds / 1000)),
    pushed,
    pulled,
  ])
  const columns = ['transport', 'ms each iteration', 'MiB/s in all', 'copies pushed', 'copies pulled']
  const note = 'copies: by the program and its library + beneath them'
  return {
    tables: [{ title: 'an iteration', columns, rows, note }],
    limits: [
      {
        what: `${RING_SHM}: an iteration, beside the quickest other`,
        rounds: ratios(of(RING_SHM), of(quickest)),
        unit: `× ${quickest}`,
        bound: '≤',
        limit: 1,
      },
    ],
  }
}

/** @throws when a weight is wrong */
async function sample(
  build: Build,
  at: Transport['at'],
  folder: string,
  iterations: number,
): Promise<Figures> {
  for (const socket of ['shm.sock', 'zeromq.ipc', 'unix.sock']) rmSync(join(folder, socket), { force: true })
  await using server = new Child(process.execPath, [...build.script('server'), at(folder), String(WORKERS)])
  const [, uri] = await server.prints(/^listening (\S+)$/m)
  const args = [...build.script('worker'), uri as string, String(WORKERS), String(iterations)]
  const { stdout } = await run(process.execPath, args, { timeout: DEADLINE_MS, killSignal: 'SIGKILL' })
  if (!/^all \d+ weights are what/m.test(stdout)) throw new Error(`no checked weights:\n${stdout}`)
  const times = [...stdout.matchAll(/^iteration \d+: ([\d.]+) ms$/gm)].map(([, time]) => Number(time))
  return { [FIGURE]: median(times.slice(WARM_UP)) }
}
