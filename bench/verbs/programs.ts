// The native benchmarks of verbs: pairs of processes, each on a core of its own.
import { join } from 'node:path'
import type { Build } from '../against/build.js'
import { Child, run } from '../core/child.js'

/** Cores of the connecting and the listening process, for ours and for the peer alike. */
export const CORES = { connecting: '0', listening: '1' } as const
export const DEADLINE_MS = 60_000

/** What verbs-pingpong prints; which of the figures depends on the test. */
export interface VerbsFigures {
  /** Half a round trip. */
  p50Us: number
  p99Us: number
  averageUs: number
  mebibytesPerSecond: number
  millionPerSecond: number
  /** One operation after the other: what each takes. */
  nanosecondsEach: number
}

const withEach = (figures: VerbsFigures): VerbsFigures => ({
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

type Program = 'verbs-pingpong' | 'verbs-many'

function pair(build: Build, program: Program, uri: string, args: readonly string[]): Promise<string> {
  const path = join(build.programs, program)
  return between(build, program, uri, (bound) => [path, '--connect', bound, ...args])
}

/** Runs a listening `program` and, with where it listens, the command of the connecting side. */
async function between(
  build: Build,
  program: Program,
  uri: string,
  connecting: (bound: string) => readonly string[],
): Promise<string> {
  const path = join(build.programs, program)
  await using listening = new Child('taskset', ['-c', CORES.listening, path, '--listen', uri])
  const [, bound] = await listening.prints(/^listening (\S+)$/m)
  const { stdout } = await run('taskset', ['-c', CORES.connecting, ...connecting(bound as string)], {
    timeout: DEADLINE_MS,
  })
  return stdout
}

export type PingpongTest = 'write-lat' | 'send-lat' | 'write-bw' | 'write-rate'

export async function pingpong(
  build: Build,
  uri: string,
  test: PingpongTest,
  options: Readonly<Record<string, number>>,
): Promise<VerbsFigures> {
  const args = Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)])
  return withEach(JSON.parse(await pair(build, 'verbs-pingpong', uri, ['--test', test, ...args])))
}

/** 64-byte WRITEs from prepared slots of TypeScript, one at a time or 64 with one call. */
export async function slots(
  build: Build,
  uri: string,
  mode: 'one' | 'many',
  iterations: number,
): Promise<VerbsFigures> {
  const command = (bound: string) => [
    ...[process.execPath, ...build.script('slots'), bound, mode, String(iterations)],
  ]
  return withEach(JSON.parse(await between(build, 'verbs-pingpong', uri, command)))
}

/** A copy of 1 MiB blocks by one process, to memory that another may map. */
export async function memcpy(build: Build, iterations: number): Promise<VerbsFigures> {
  const args = ['--memcpy', '--iterations', String(iterations)]
  const program = join(build.programs, 'verbs-pingpong')
  const { stdout } = await run('taskset', ['-c', CORES.connecting, program, ...args], {
    timeout: DEADLINE_MS,
  })
  return JSON.parse(stdout)
}

export async function many(build: Build, uri: string, count: number): Promise<ManyFigures> {
  return JSON.parse(await pair(build, 'verbs-many', uri, ['--count', String(count)]))
}
