// One run of fio over NBD.
import { run } from '../core/child.js'
import type { Figures } from '../core/rounds.js'
import { SIZE } from './targets.js'
import type { Workload } from './workloads.js'

/** What a job that verifies writes and reads. */
const VERIFIED = '64M'

/** Of fio's JSON, either direction. */
interface Direction {
  readonly total_ios: number
  /** milliseconds */
  readonly runtime: number
  readonly iops: number
  readonly clat_ns: { readonly percentile?: Readonly<Record<string, number>> }
}

/** @returns IOPS of reads and writes together, and µs from submission to completion as fio sees it: of most of them */
export async function fio(uri: string, workload: Workload, seconds: number): Promise<Figures> {
  const { stdout } = await run('fio', options(uri, workload, seconds), {
    timeout: (seconds + 30) * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: 2 ** 24,
  })
  const [job] = JSON.parse(stdout.slice(stdout.indexOf('{'))).jobs
  if (job.error !== 0) throw new Error(`fio on ${uri}: error ${job.error}`)
  const { read, write }: { read: Direction; write: Direction } = job
  const most = read.total_ios > write.total_ios ? read : write
  const at = (percentile: string) => (most.clat_ns.percentile?.[percentile] ?? Number.NaN) / 1000
  // One after the other where it verifies, else at the same time.
  const iops = workload.verifies
    ? (read.total_ios + write.total_ios) / ((read.runtime + write.runtime) / 1000)
    : read.iops + write.iops
  return { iops, p50: at('50.000000'), p99: at('99.000000') }
}

/** The same for each target: a warm-up, then the time that counts; the contents of writes are random. */
function options(uri: string, workload: Workload, seconds: number): string[] {
  const extent = workload.verifies
    ? [`--size=${VERIFIED}`]
    : [`--size=${SIZE}`, '--time_based', '--ramp_time=300ms', `--runtime=${seconds}s`]
  return [
    '--name=bench',
    '--ioengine=nbd',
    `--uri=${uri}`,
    `--iodepth=${workload.depth}`,
    '--randrepeat=1',
    '--zero_buffers=0',
    '--scramble_buffers=1',
    `--numjobs=${workload.connections ?? 1}`,
    '--group_reporting',
    ...workload.options,
    ...extent,
    '--output-format=json',
  ]
}
