// One sample: two processes, started for it and ended after it.
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Build } from '../against/build.js'
import { Child, run } from '../core/child.js'
import type { Figures } from '../core/rounds.js'
import type { Case } from './cases.js'
import type { Latency, Rate } from './traffic.js'

const DEADLINE_MS = 60_000
/** The core of either process, which all of its threads inherit. */
export interface Cores {
  readonly listening: string
  readonly connecting: string
}

/** What peer.ts prints. */
interface Sample {
  latency?: Latency
  rate: Rate
}

/**
 * @param milliseconds for each thing that is timed
 * @param cores without them, each process gets what the scheduler gives it
 * @param warmUp milliseconds before each kind of traffic is timed
 */
export async function pair(
  build: Build,
  { transport, at, rateOnly }: Case,
  size: number,
  folder: string,
  milliseconds: number,
  cores?: Cores,
  warmUp = milliseconds,
): Promise<Figures> {
  for (const socket of ['unix.sock', 'shm.sock', 'zeromq.ipc']) rmSync(join(folder, socket), { force: true })
  const peer = build.script('ringPeer')
  const where = [transport, at(folder), String(size)]
  const [listen, ...listenArgs] = pinned(cores?.listening, [...peer, 'listen', ...where])
  await using listening = new Child(listen, listenArgs)
  const [, uri] = await listening.prints(/^listening (\S+)$/m)
  const tests = rateOnly === true ? 'rate' : 'both'
  const what = [transport, uri as string, String(size), String(milliseconds), tests, String(warmUp)]
  const [connect, ...connectArgs] = pinned(cores?.connecting, [...peer, 'connect', ...what])
  const { stdout } = await run(connect, connectArgs, { timeout: DEADLINE_MS, killSignal: 'SIGKILL' })
  const { latency, rate }: Sample = JSON.parse(stdout)
  const { messagesPerSecond, mebibytesPerSecond } = rate
  if (latency === undefined) return { messagesPerSecond, mebibytesPerSecond }
  const { p50, p99, p999, mean } = latency
  return { p50, p99, p999, mean, messagesPerSecond, mebibytesPerSecond }
}

/** The command of a Node process. taskset(1) pins itself and becomes Node, so that no thread starts elsewhere. */
const pinned = (core: string | undefined, args: readonly string[]): [string, ...string[]] =>
  core === undefined ? [process.execPath, ...args] : ['taskset', '-c', core, process.execPath, ...args]

/** Copies of 1 MiB in this machine's memory, in a process of their own. */
export async function memcpy(milliseconds: number): Promise<Figures> {
  const script = fileURLToPath(new URL('memcpy.js', import.meta.url))
  const { stdout } = await run(process.execPath, [script, String(milliseconds)], { timeout: DEADLINE_MS })
  const { messagesPerSecond, mebibytesPerSecond }: Rate = JSON.parse(stdout)
  return { messagesPerSecond, mebibytesPerSecond }
}
