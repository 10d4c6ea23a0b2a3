import type { Shell } from '../base/shell.js'
import { Guest } from '../machine/guest.js'
import type { LabParts } from '../machine/lab-parts.js'
import { buildRingBenchmarks, ringPingpong } from '../machine/native.js'
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

/** What the native ring may take of the time of perftest's SEND. */
const limit = 1.15

const address = '10.77.0.1'
const milliseconds = 1000
const deadlineMs = 120_000
/** Nothing to copy, and some. */
const sizes = [64, 32_768] as const

/** What bench/ring/peer.ts runs: its own names. */
const candidates = [
  { title: 'STEP0 SEND/RECV, interrupt, copies', transport: 'send-receive' },
  { title: 'STEP1 ring, interrupt, copies', transport: 'ring-event' },
  { title: 'STEP2 ring, polling thread, copies', transport: 'ring-poll' },
  { title: 'STEP3 ring, polling program, no copies', transport: 'zero-copy' },
  { title: 'ring, event loop', transport: 'event-loop' },
  { title: 'Node net', transport: 'net' },
] as const
const steps = 4

interface Figures {
  p50: number
  messagesPerSecond: number
}

/** What a part of the benchmark adds to its report. */
type Part = Pick<Report, 'tables' | 'limits'>

/**
 * The ring over rxe between two processes of a guest. Native: half a round trip beside ib_send_lat. From
 * JavaScript: the steps from interrupts and copies to neither, beside Node's sockets on the same interface.
 */
export async function ringBench(
  parts: LabParts,
  print: (line: string) => void,
  { rounds }: { rounds: number },
): Promise<Report> {
  await buildRingBenchmarks()
  await using guest = await Guest.boot(parts)
  await guest.run(['sh', 'test/lab/guest/rxe.sh', 'veth', address])
  const measured: Part[] = []
  for (const device of await devicesOf(guest)) {
    measured.push(await native(guest, device, rounds))
    print(`${device.name}: native ring and ib_send_lat, ${rounds} rounds`)
  }
  for (const size of sizes) {
    measured.push(await fromJavaScript(guest, size, rounds))
    print(`rxe ${size} B: ${candidates.length} transports, ${rounds} rounds`)
  }
  return report({
    suite: 'lab ring',
    about: 'the ring over rxe between two processes of a guest',
    rounds,
    tables: measured.flatMap(({ tables }) => tables),
    limits: measured.flatMap(({ limits }) => limits),
  })
}

async function native(guest: Guest, device: Device, rounds: number): Promise<Part> {
  const [ring = [], send = []] = await inTurn(rounds, [
    () => pingpong(guest, ringPingpong, device, 'ring-lat'),
    () => perftestLatency(guest, device, 'ib_send_lat'),
  ])
  const ratio = ratios(ring, send)
  return {
    tables: [
      {
        title: `${device.name}, 64 B: half a round trip from C++, µs`,
        columns: ['device', 'ring', 'ib_send_lat', 'ratio'],
        rows: [[device.name, ring, send, ratio]],
      },
    ],
    limits: [
      { what: `${device.name}, 64 B: native ring`, rounds: ratio, unit: '× ib_send_lat', bound: '≤', limit },
    ],
  }
}

async function fromJavaScript(guest: Guest, size: number, rounds: number): Promise<Part> {
  const samples = await inTurn(
    rounds,
    candidates.map(
      ({ transport }) =>
        () =>
          measure(guest, transport, size),
    ),
  )
  const p50 = samples.map((some) => some.map((figures) => figures.p50))
  const rate = samples.map((some) => some.map(({ messagesPerSecond }) => messagesPerSecond / 1000))
  const isStep = (i: number) => i > 0 && i < steps
  return {
    tables: [
      {
        title: `rxe, ${size} B, from JavaScript; a factor above 1 is faster than the step before`,
        columns: ['transport', 'p50 µs', 'factor', '1000/s', 'rate factor'],
        rows: candidates.map(({ title }, i) => [
          title,
          p50[i] ?? [],
          isStep(i) ? ratios(p50[i - 1], p50[i]) : '',
          rate[i] ?? [],
          isStep(i) ? ratios(rate[i], rate[i - 1]) : '',
        ]),
      },
    ],
    limits: candidates.flatMap(({ title }, i) =>
      isStep(i)
        ? [
            {
              what: `rxe, ${size} B: ${title}, p50`,
              rounds: ratios(p50[i], p50[i - 1]),
              unit: '× the step before',
              bound: '≤' as const,
              limit: 1,
            },
          ]
        : [],
    ),
  }
}

async function measure(guest: Shell, transport: string, size: number): Promise<Figures> {
  const peer = (role: string, at: string, ...more: string[]) => [
    ...['node', 'bench/dist/ring/peer.js', role, transport, at, String(size), ...more],
  ]
  const at = transport === 'net' ? `tcp://${address}` : `rdma://${address}:7472`
  const server = guest.start(peer('listen', at))
  try {
    const [, uri] = await server.waitForLine(/^listening (\S+)$/, deadlineMs)
    const out = await guest.run(peer('connect', uri as string, String(milliseconds)), { deadlineMs })
    const { latency, rate } = JSON.parse(out)
    return { p50: latency.p50, messagesPerSecond: rate.messagesPerSecond }
  } finally {
    await server.stop(deadlineMs)
  }
}
