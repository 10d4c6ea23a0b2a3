import { Guest } from './guest.js'
import type { LabParts } from './lab-parts.js'
import { LocalShell } from './local-shell.js'
import { buildRingBenchmarks, ringPingpong } from './native.js'
import { type Device, devicesOf, perftestLatency, pingpong, spread } from './perftest.js'
import type { Shell } from './shell.js'

const nativeRounds = 5
/** What the native ring may take of the time of perftest's SEND. */
const limit = 1.15

const address = '10.77.0.1'
const rounds = 3
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

/**
 * The ring over rxe between two processes of a guest. Native: half a round trip beside ib_send_lat. From
 * JavaScript: the steps from interrupts and copies to neither, beside Node's sockets on the same interface.
 */
export async function ringBench(parts: LabParts, print: (line: string) => void): Promise<void> {
  await buildRingBenchmarks()
  await new LocalShell().run(['node_modules/.bin/tsc', '-b', 'bench'], { deadlineMs: 300_000 })
  await using guest = await Guest.boot(parts)
  await guest.run(['sh', 'test/lab/guest/rxe.sh', 'veth', address])
  for (const device of await devicesOf(guest)) await native(guest, device, print)
  for (const size of sizes) await fromJavaScript(guest, size, print)
}

async function native(guest: Guest, device: Device, print: (line: string) => void): Promise<void> {
  const ours: number[] = []
  const theirs: number[] = []
  for (let round = 0; round < nativeRounds; round++) {
    ours.push(await pingpong(guest, ringPingpong, device, 'ring-lat'))
    theirs.push(await perftestLatency(guest, device, 'ib_send_lat'))
  }
  const [ring, send] = [spread(ours), spread(theirs)]
  const ratio = ring.median / send.median
  print(
    `${device.name} 64 B: native ring ${ring.text} µs, ib_send_lat ${send.text} µs, ratio ${ratio.toFixed(3)} ` +
      `(limit ${limit}: ${held(ratio <= limit)})`,
  )
}

async function fromJavaScript(guest: Guest, size: number, print: (line: string) => void): Promise<void> {
  const samples = candidates.map(() => [] as Figures[])
  for (let round = 0; round < rounds; round++)
    for (const [i, { transport }] of candidates.entries())
      samples[i]?.push(await measure(guest, transport, size))
  const figures = samples.map((some) => ({
    p50: spread(some.map(({ p50 }) => p50)).median,
    rate: spread(some.map(({ messagesPerSecond }) => messagesPerSecond)).median,
  }))
  for (const [i, { title }] of candidates.entries()) {
    const { p50, rate } = figures[i] as { p50: number; rate: number }
    const before = i > 0 && i < steps ? figures[i - 1] : undefined
    const factors =
      before === undefined
        ? ''
        : `, ${(before.p50 / p50).toFixed(2)} and ${(rate / before.rate).toFixed(2)} times the step before: ` +
          held(p50 < before.p50)
    print(
      `rxe ${size} B: ${title}: round trip p50 ${p50.toFixed(1)} µs, ${Math.round(rate)} messages/s${factors}`,
    )
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

const held = (is: boolean) => (is ? 'held' : 'missed')
