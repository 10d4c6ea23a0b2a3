// UCX's own benchmark, the peer of verbs.
import { Child, run } from '../core/child.js'
import { freePort } from '../core/free-port.js'
import { CORES, DEADLINE_MS, type VerbsFigures } from './programs.js'

type FigureLine = [number, number, number, number, number, number, number, number]

/** A test of ucx_perftest over one transport. @throws when UCX chose another transport */
export async function ucx(
  transport: 'posix' | 'tcp',
  test: string,
  size: number,
  iterations: number,
): Promise<VerbsFigures> {
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
  // Iterations, padded when they are few; percentile, average and overall latency (µs), bandwidth (MiB/s) and rate (1/s), average and overall
  const numbers = /^ *\d+(?:,[\d.]+){7}$/m.exec(stdout)?.[0].split(',').map(Number)
  if (numbers === undefined) throw new Error(`ucx_perftest printed no figures:\n${stdout}`)
  const [, p50, , average, , bandwidth, , rate] = numbers as FigureLine
  return {
    p50Us: p50,
    p99Us: Number.NaN,
    averageUs: average,
    mebibytesPerSecond: bandwidth,
    millionPerSecond: rate / 1e6,
    nanosecondsEach: 1e9 / rate,
  }
}
