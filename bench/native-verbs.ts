// The native benchmarks of verbs, built and run: pairs of processes, each on a core of its own.
import { type ExecFileSyncOptions, execFile, execFileSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Child } from './child.js'

const top = fileURLToPath(new URL('../..', import.meta.url))
const folder = `${top}build/bench`
const run = promisify(execFile)

/** Cores of the connecting and the listening process, for ours and for the peer alike. */
const CORES = { connecting: '0', listening: '1' } as const
const DEADLINE_MS = 60_000

/** What verbs-pingpong prints; which of the figures depends on the test. */
export interface Figures {
  /** Half a round trip. */
  p50Us: number
  p99Us: number
  averageUs: number
  mebibytesPerSecond: number
  millionPerSecond: number
  /** One operation after the other: what each takes. */
  nanosecondsEach: number
}

const withEach = (figures: Figures): Figures => ({
  ...figures,
  nanosecondsEach: 1000 / figures.millionPerSecond,
})

/** What verbs-many prints: for each of `count` queue pairs, and of the process while it idles. */
export interface ManyFigures {
  count: number
  depth: number
  anonymousKiB: number
  sharedKiB: number
  idleSeconds: number
  processorSeconds: number
}

export function buildNativeBenchmarks(): void {
  mkdirSync(folder, { recursive: true })
  const options: ExecFileSyncOptions = { cwd: top, stdio: ['ignore', 'ignore', 'inherit'] }
  execFileSync('cmake', ['-S', 'bench/native', '-B', folder, '-DCMAKE_BUILD_TYPE=Release'], options)
  execFileSync('cmake', ['--build', folder, '--parallel', '2'], options)
}

async function pair(program: string, uri: string, args: readonly string[]): Promise<string> {
  return between(program, uri, (bound) => [`${folder}/${program}`, '--connect', bound, ...args])
}

/** Runs a listening `program` and, with where it listens, the command of the connecting side. */
async function between(
  program: string,
  uri: string,
  connecting: (bound: string) => readonly string[],
): Promise<string> {
  const path = `${folder}/${program}`
  await using listening = new Child('taskset', ['-c', CORES.listening, path, '--listen', uri])
  const [, bound] = await listening.prints(/^listening (\S+)$/m)
  const { stdout } = await run('taskset', ['-c', CORES.connecting, ...connecting(bound as string)], {
    timeout: DEADLINE_MS,
  })
  return stdout
}

export async function pingpong(uri: string, test: string, ...args: string[]): Promise<Figures> {
  return withEach(JSON.parse(await pair('verbs-pingpong', uri, ['--test', test, ...args])))
}

/** 64-byte WRITEs from prepared slots of TypeScript, one at a time or 64 with one call. */
export async function slots(uri: string, mode: 'one' | 'many', iterations: number): Promise<Figures> {
  const script = fileURLToPath(new URL('verbs-slots.js', import.meta.url))
  return withEach(
    JSON.parse(
      await between('verbs-pingpong', uri, (bound) => [
        process.execPath,
        script,
        bound,
        mode,
        String(iterations),
      ]),
    ),
  )
}

/** A copy of 1 MiB blocks by one process, to memory that another may map. */
export async function memcpy(iterations: number): Promise<Figures> {
  const args = ['--memcpy', '--iterations', String(iterations)]
  const program = `${folder}/verbs-pingpong`
  const { stdout } = await run('taskset', ['-c', CORES.connecting, program, ...args], {
    timeout: DEADLINE_MS,
  })
  return JSON.parse(stdout)
}

export async function many(uri: string, count: number): Promise<ManyFigures> {
  return JSON.parse(await pair('verbs-many', uri, ['--count', String(count)]))
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  await new Promise((resolve) => server.close(resolve))
  if (address === null || typeof address === 'string') throw new Error('no port')
  return address.port
}

/** A test of ucx_perftest over one transport. @throws when UCX chose another transport */
export async function ucx(
  transport: 'posix' | 'tcp',
  test: string,
  size: number,
  iterations: number,
): Promise<Figures> {
  const port = String(await freePort())
  const env = { UCX_TLS: `${transport},self`, ...(transport === 'tcp' && { UCX_NET_DEVICES: 'lo' }) }
  // Its stdout is a pipe here, which it would fill before it says anything.
  await using listening = new Child(
    'taskset',
    ['-c', CORES.listening, 'stdbuf', '-oL', 'ucx_perftest', '-p', port],
    env,
  )
  await listening.prints(/Waiting for connection/)
  const warmup = String(Math.ceil(iterations / 10))
  const { stdout } = await run(
    'taskset',
    [
      ...['-c', CORES.connecting, 'ucx_perftest', '127.0.0.1', '-p', port, '-t', test, '-f', '-v'],
      ...['-s', String(size), '-n', String(iterations), '-w', warmup],
    ],
    { timeout: DEADLINE_MS, env: { ...process.env, ...env, UCX_LOG_LEVEL: 'info' } },
  )
  // "ep_cfg[0]: tag(posix/memory)": the lanes that it took.
  const lanes = [...stdout.matchAll(/ep_cfg\[\d+\]: (.*)/g)].map(([, lane]) => lane)
  if (lanes.length === 0 || !lanes.every((lane) => lane?.includes(`${transport}/`))) {
    throw new Error(`ucx_perftest did not use ${transport}: ${lanes.join(', ')}`)
  }
  // iterations, percentile, average and overall latency (µs), bandwidth (MiB/s) and rate (1/s), average and overall
  const numbers = /^\d+(?:,[\d.]+){7}$/m.exec(stdout)?.[0].split(',').map(Number)
  if (numbers === undefined) throw new Error(`ucx_perftest printed no figures:\n${stdout}`)
  const [, p50, , average, , bandwidth, , rate] = numbers as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number,
  ]
  return {
    p50Us: p50,
    p99Us: Number.NaN,
    averageUs: average,
    mebibytesPerSecond: bandwidth,
    millionPerSecond: rate / 1e6,
    nanosecondsEach: 1e9 / rate,
  }
}
