import type { Shell } from '../base/shell.js'

/** Rounds of one measurement. */
export const iterations = 2000
const deadlineMs = 60_000

/** An RDMA device of a guest, and how it is reached. */
export interface Device {
  name: string
  address: string
  /** What perftest needs beside the device's name. */
  perftest: readonly string[]
}

/** Every device that the guest has now, by the address of its network interface. */
export async function devicesOf(shell: Shell): Promise<Device[]> {
  const devices: Device[] = []
  for (const [, name, port] of (await shell.run(['rdma', 'link'])).matchAll(
    /^link (\S+)\/1 .*netdev (\S+)/gm,
  )) {
    const addresses = await shell.run(['ip', '-o', '-4', 'address', 'show', 'dev', port as string])
    const address = /inet ([\d.]+)\//.exec(addresses)?.[1]
    if (name === undefined || address === undefined) continue
    const sysfs = `/sys/class/infiniband/${name}`
    const nodeType = await shell.run(['cat', `${sysfs}/node_type`])
    const iwarp = nodeType.includes('RNIC')
    devices.push({ name, address, perftest: iwarp ? ['-R'] : ['-x', await ipv4GidIndex(shell, sysfs)] })
  }
  return devices
}

/** The entry ::ffff:a.b.c.d of the GID table. */
async function ipv4GidIndex(shell: Shell, sysfs: string): Promise<string> {
  const found = await shell.run(
    `grep -l '^0000:0000:0000:0000:0000:ffff:' ${sysfs}/ports/1/gids/? | head -n 1`,
  )
  return found.trim().split('/').at(-1) ?? ''
}

/**
 * Half a round trip of 64 bytes, µs, by one of our native programs (bench/native) that listen and connect
 * alike: between two processes of a guest, each on a processor of its own.
 */
export async function pingpong(shell: Shell, program: string, device: Device, test: string): Promise<number> {
  const server = shell.start([
    ...['taskset', '-c', '1', program, '--listen', `rdma://${device.address}:7471`],
  ])
  const [, uri] = await server.waitForLine(/^listening (\S+)$/, deadlineMs)
  const out = await shell.run(
    [
      ...['taskset', '-c', '0', program, '--connect', uri as string, '--test', test],
      ...['--iterations', String(iterations)],
    ],
    { deadlineMs },
  )
  await server.ended(deadlineMs)
  return (JSON.parse(out) as { p50Us: number }).p50Us
}

/** The same by one of perftest's. */
export async function perftestLatency(shell: Shell, device: Device, program: string): Promise<number> {
  let out = ''
  for (let tries = 0; tries < 5; tries++) {
    out = await perftest(shell, device, program)
    // #bytes #iterations t_min t_max t_typical …: the typical one is the median. They are "inf" if it could
    // not determine the processor's clock rate, which it measures each time.
    const typical = /^\s*64\s+\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)/m.exec(out)?.[1]
    if (typical !== undefined) return Number(typical)
  }
  throw new Error(`${program} printed no figures:\n${out}`)
}

async function perftest(shell: Shell, device: Device, program: string): Promise<string> {
  const command = (core: string) => [
    ...['taskset', '-c', core, program, '-d', device.name, '-F', '-s', '64', '-n', String(iterations)],
    ...device.perftest,
  ]
  const server = shell.start(['stdbuf', '-oL', ...command('1')])
  await server.waitForLine(/Waiting for client/, deadlineMs)
  const out = await shell.run([...command('0'), device.address], { deadlineMs })
  await server.ended(deadlineMs)
  return out
}

/**
 * What a benchmark of the lab measured. bench/judge.ts judges and prints it; bench/core/report.ts says what each part
 * means. bench is another TypeScript project with a folder of its own to build to, so nothing of it can be imported.
 */
export interface Report {
  suite: string
  about: string
  rounds: number
  quick: boolean
  tables: { title: string; columns: string[]; rows: (number[] | number | string)[][] }[]
  limits: { what: string; rounds: number[]; unit: string; bound: '≤' | '≥'; limit: number }[]
  comparisons: []
  samples: []
  failures: string[]
}

export const report = (parts: Pick<Report, 'suite' | 'about' | 'rounds'> & Partial<Report>): Report => ({
  ...{ quick: false, tables: [], limits: [], comparisons: [], samples: [], failures: [] },
  ...parts,
})

/**
 * One sample of each in every round, and every second round from the last to the first, so that neither of two
 * neighbours always goes first. @returns the rounds of each
 */
export async function inTurn<T>(rounds: number, measures: readonly (() => Promise<T>)[]): Promise<T[][]> {
  const samples = measures.map((measure) => ({ measure, rounds: [] as T[] }))
  for (let round = 0; round < rounds; round++)
    for (const sample of round % 2 === 0 ? samples : samples.toReversed())
      sample.rounds.push(await sample.measure())
  return samples.map((sample) => sample.rounds)
}

/** Within each round, so that what slowed both down does not count. */
export const ratios = (of: readonly number[] = [], over: readonly number[] = []): number[] =>
  of.map((value, round) => value / (over[round] ?? Number.NaN))
