import { Guest } from '../machine/guest.js'
import type { LabParts } from '../machine/lab-parts.js'
import { buildVerbsBenchmarks, verbsPingpong } from '../machine/native.js'
import {
  type Device,
  devicesOf,
  inTurn,
  perftestLatency,
  pingpong,
  type Report,
  ratios,
  report,
} from './perftest.js'

/** What ours may take of perftest's time. */
const limit = 1.05

const tests = [
  { ours: 'write-lat', perftest: 'ib_write_lat' },
  { ours: 'send-lat', perftest: 'ib_send_lat' },
] as const

/**
 * Half a round trip of 64 bytes on each of a guest's devices, from one process of it to another: our
 * native layer beside perftest, in turn. rxe needs perftest's `-x`, an iWARP device (siw) `-R`.
 */
export async function verbsBench(
  parts: LabParts,
  print: (line: string) => void,
  { rounds }: { rounds: number },
): Promise<Report> {
  await buildVerbsBenchmarks()
  await using guest = await Guest.boot(parts)
  await guest.run(['sh', 'test/lab/guest/rxe.sh', 'veth', '10.77.0.1'])
  await guest.run(['sh', 'test/lab/guest/siw.sh', parts.modules.siw])
  const results: Result[] = []
  for (const device of await devicesOf(guest))
    for (const test of tests) {
      results.push(await measure(guest, device, test, rounds))
      print(`${device.name}: ${test.ours} and ${test.perftest}, ${rounds} rounds`)
    }
  return report({
    suite: 'lab verbs',
    about: 'half a round trip of 64 bytes between two processes of a guest, µs',
    rounds,
    tables: [
      {
        title: 'beside perftest',
        columns: ['device', 'test', 'rdmakit', 'perftest', "perftest's", 'ratio'],
        rows: results.map(({ device, test, ours, theirs }) => [
          ...[device, test.ours, ours, test.perftest, theirs, ratios(ours, theirs)],
        ]),
      },
    ],
    limits: results.map(({ device, test, ours, theirs }) => ({
      what: `${device}, 64 B: ${test.ours}`,
      rounds: ratios(ours, theirs),
      unit: `× ${test.perftest}`,
      bound: '≤',
      limit,
    })),
  })
}

type Test = (typeof tests)[number]

interface Result {
  device: string
  test: Test
  ours: number[]
  theirs: number[]
}

async function measure(guest: Guest, device: Device, test: Test, rounds: number): Promise<Result> {
  const [ours = [], theirs = []] = await inTurn(rounds, [
    () => pingpong(guest, verbsPingpong, device, test.ours),
    () => perftestLatency(guest, device, test.perftest),
  ])
  return { device: device.name, test, ours, theirs }
}
