// fio's jobs: 4 KiB at random, and three of its jobs that mix sizes, verify, or are not aligned to pages.

export interface Workload {
  readonly name: string
  /** Of each connection. */
  readonly depth: number
  /** One without it. */
  readonly connections?: number
  /** Of a block device's pages, at random: what most of the limits are for. */
  readonly pages: boolean
  /** Runs once through `size` and not for a time: its reads check its writes. */
  readonly verifies?: boolean
  /** Measured with `--quick`, too. */
  readonly quick: boolean
  /** Of fio. */
  readonly options: readonly string[]
}

const DEPTHS = [1, 4, 32] as const
const KINDS = [
  { name: 'randread', options: ['--rw=randread'], quick: true },
  { name: 'randwrite', options: ['--rw=randwrite'], quick: true },
  { name: '70/30', options: ['--rw=randrw', '--rwmixread=70'], quick: false },
] as const

const pages = KINDS.flatMap(({ name, options, quick }) =>
  DEPTHS.map(
    (depth): Workload => ({
      ...{ name: `${name}, depth ${depth}`, depth, pages: true, quick: quick && depth !== 4 },
      options: ['--bs=4k', ...options],
    }),
  ),
)

/** As fio's examples have them: iometer-file-access-server and basic-verify. */
const JOBS: readonly Workload[] = [
  {
    ...{ name: 'iometer, depth 64', depth: 64, pages: false, quick: false },
    options: [
      '--bssplit=512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10',
      ...['--rw=randrw', '--rwmixread=80'],
    ],
  },
  {
    ...{ name: 'verify, depth 16', depth: 16, pages: false, verifies: true, quick: false },
    options: ['--bs=4k', '--rw=randwrite', '--verify=crc32c', '--verify_state_save=0'],
  },
  {
    ...{ name: 'unaligned writes, depth 1', depth: 1, pages: false, quick: false },
    options: ['--bs=4k', '--rw=randwrite', '--blockalign=512', '--norandommap'],
  },
]

export const WORKLOADS: readonly Workload[] = [...pages, ...JOBS]
