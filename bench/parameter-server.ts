// examples/parameter-server over each of its transports, in turn: how long it takes two workers to push the
// gradients of ResNet-50 and to pull its weights.
import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Child } from './child.js'
import { line, printLines } from './ring/acceptance.js'
import { median, printTable } from './table.js'

const run = promisify(execFile)
const script = (name: string) =>
  fileURLToPath(new URL(`../../examples/dist/parameter-server/${name}.js`, import.meta.url))

const WORKERS = 2
const PARAMETERS = 25_557_032
/** The first iterations touch the memory for the first time. */
const WARM_UP = 2
const DEADLINE_MS = 120_000

interface Candidate {
  name: string
  at: (folder: string) => string
  /** copies of a byte that is pushed and of one that is pulled: by the program or the library, and beneath */
  pushed: string
  pulled: string
}

const CANDIDATES: readonly Candidate[] = [
  { name: 'ring shm', at: (folder) => `shm://${folder}/shm.sock`, pushed: '0 + 1', pulled: '2 + 1' },
  { name: 'ring iwarp', at: () => 'iwarp://127.0.0.1:0', pushed: '0 + 2', pulled: '2 + 2' },
  {
    name: 'zeromq ipc',
    at: (folder) => `zeromq+ipc://${folder}/zeromq.ipc`,
    pushed: '0 + 2',
    pulled: '1 + 2',
  },
  { name: 'zeromq tcp', at: () => 'zeromq+tcp://127.0.0.1:*', pushed: '0 + 2', pulled: '1 + 2' },
  { name: 'net', at: () => 'tcp://127.0.0.1:0', pushed: '1 + 2', pulled: '1 + 2' },
  { name: 'unix', at: (folder) => `unix://${folder}/unix.sock`, pushed: '1 + 2', pulled: '1 + 2' },
]

export async function parameterServer({ json, quick }: { json: boolean; quick: boolean }): Promise<void> {
  const [rounds, iterations] = quick ? [1, 5] : [3, 20]
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-'))
  try {
    const samples = new Map(CANDIDATES.map(({ name }) => [name, [] as number[]]))
    for (let round = 0; round < rounds; round++)
      for (const { name, at } of CANDIDATES) {
        for (const socket of ['shm.sock', 'zeromq.ipc', 'unix.sock'])
          rmSync(join(folder, socket), { force: true })
        samples.get(name)?.push(median((await iterate(at(folder), iterations)).slice(WARM_UP)))
      }
    const of = (name: string) => median(samples.get(name) ?? [])
    const others = CANDIDATES.filter(({ name }) => !name.startsWith('ring'))
    const best = others.reduce((least, one) => (of(one.name) < of(least.name) ? one : least))
    const lines = [
      line(
        `ring shm: an iteration, beside the quickest other (${best.name})`,
        of('ring shm'),
        'ms',
        '≤',
        of(best.name),
      ),
    ]
    if (json) {
      const results = CANDIDATES.map(({ at: _, ...rest }) => ({
        ...rest,
        milliseconds: samples.get(rest.name),
      }))
      console.log(
        JSON.stringify({ rounds, iterations, workers: WORKERS, results, acceptance: lines }, undefined, 2),
      )
      return
    }
    console.log(
      `\n${WORKERS} workers push ${PARAMETERS} gradients and pull as many weights; every weight checked; ` +
        `median of ${rounds} rounds of ${iterations} iterations`,
    )
    const mebibytes = (2 * WORKERS * PARAMETERS * 4) / 2 ** 20
    printTable(
      ['transport', 'ms each iteration', 'MiB/s in all', 'copies pushed', 'copies pulled'],
      CANDIDATES.map(({ name, pushed, pulled }) => [
        name,
        of(name),
        mebibytes / (of(name) / 1000),
        pushed,
        pulled,
      ]),
    )
    console.log('copies: by the program and its library + beneath them\n')
    printLines(lines)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** @returns milliseconds of each iteration. @throws when a weight is wrong */
async function iterate(at: string, iterations: number): Promise<number[]> {
  await using server = new Child(process.execPath, [script('server'), at, String(WORKERS)])
  const [, uri] = await server.prints(/^listening (\S+)$/m)
  const args = [script('worker'), uri as string, String(WORKERS), String(iterations)]
  const { stdout } = await run(process.execPath, args, { timeout: DEADLINE_MS, killSignal: 'SIGKILL' })
  if (!/^all \d+ weights are what/m.test(stdout)) throw new Error(`no checked weights:\n${stdout}`)
  return [...stdout.matchAll(/^iteration \d+: ([\d.]+) ms$/gm)].map(([, time]) => Number(time))
}
