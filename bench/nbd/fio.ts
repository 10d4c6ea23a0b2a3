// One run of fio over NBD.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import type { Figures } from '../core/rounds.js'
import { SIZE } from './targets.js'

const run = promisify(execFile)

export interface Workload {
  readonly kind: 'randread' | 'randwrite'
  readonly depth: number
}

/** @returns IOPS, and µs from submission to completion as fio sees it */
export async function fio(uri: string, workload: Workload, seconds: number): Promise<Figures> {
  const { stdout } = await run('fio', options(uri, workload, seconds), {
    timeout: (seconds + 30) * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: 2 ** 24,
  })
  const [job] = JSON.parse(stdout.slice(stdout.indexOf('{'))).jobs
  if (job.error !== 0) throw new Error(`fio on ${uri}: error ${job.error}`)
  const { iops, clat_ns } = workload.kind === 'randread' ? job.read : job.write
  const at = (percentile: string) => clat_ns.percentile[percentile] / 1000
  return { iops, p50: at('50.000000'), p99: at('99.000000') }
}

/** The same for each target: a warm-up, then the time that counts; the contents of writes are random. */
function options(uri: string, { kind, depth }: Workload, seconds: number): string[] {
  return [
    '--name=bench',
    '--ioengine=nbd',
    `--uri=${uri}`,
    `--rw=${kind}`,
    '--bs=4k',
    `--iodepth=${depth}`,
    `--size=${SIZE}`,
    '--randrepeat=1',
    '--zero_buffers=0',
    '--scramble_buffers=1',
    '--time_based',
    '--ramp_time=300ms',
    `--runtime=${seconds}s`,
    '--output-format=json',
  ]
}
