// The behaviour of both processes of a case. The first byte of a message decides its treatment, so that the receiver
// looks at each message.
import { median } from '../core/statistics.js'
import { type Endpoint, poll } from './endpoint.js'

const ANSWER = 0
const COUNT = 1
const REPORT = 2
/** What a report is: the messages counted, u32, and 4 bytes of zero. */
const REPORT_BYTES = 8

/** How one kind of traffic is driven, from the end that measures. */
export interface Driver {
  /** One after the other. With `times`, each is timed: ms. */
  roundTrips(rounds: number, times?: Float64Array): Promise<void>
  /** @returns milliseconds until the receiver has had all `count` */
  burst(count: number): Promise<number>
}

export interface Latency {
  /** Round trips that were timed one by one, µs each. */
  p50: number
  p99: number
  p999: number
  rounds: number
  /** The same number of round trips between two readings of the clock, µs each. */
  mean: number
}

export interface Rate {
  messagesPerSecond: number
  mebibytesPerSecond: number
  /** messages of a burst */
  count: number
}

const WARM_UP_ROUNDS = 5_000
const LEAST_ROUNDS = 200
const MOST_ROUNDS = 400_000
const FIRST_COUNT = 64
const BURSTS = 5
const LEAST_COUNT = 16

/** Answers, counts and reports, until the process is ended. */
export async function respond(endpoint: Endpoint, size: number): Promise<void> {
  const answer = message(size, ANSWER)
  const report = Buffer.alloc(REPORT_BYTES)
  let counted = 0
  let wrong = 0
  endpoint.receiver = (bytes, offset, length) => {
    const what = bytes[offset]
    if (length !== size) wrong++
    if (what === ANSWER) {
      endpoint.send(answer)
      return
    }
    counted++
    if (what !== REPORT) return
    report.writeUInt32LE(wrong > 0 ? 0 : counted, 0)
    counted = 0
    endpoint.send(report)
  }
  if (endpoint.turn !== undefined) await poll(endpoint, () => false)
}

/** Messages of `size` bytes, which {@link respond} takes at the other end. */
export function messages(endpoint: Endpoint, size: number): Driver {
  const ping = message(size, ANSWER)
  return {
    roundTrips: (rounds, times) => roundTrips(endpoint, ping, rounds, times),
    burst: (count) => burst(endpoint, size, count),
  }
}

/** Round trips for about `milliseconds` each way of timing, after `warmUp` milliseconds of them at most. */
export async function latency(driver: Driver, milliseconds: number, warmUp: number): Promise<Latency> {
  const start = performance.now()
  let warm = 0
  while (warm < WARM_UP_ROUNDS && performance.now() - start < warmUp) {
    await driver.roundTrips(LEAST_ROUNDS)
    warm += LEAST_ROUNDS
  }
  const untimed = performance.now()
  await driver.roundTrips(LEAST_ROUNDS)
  const each = (performance.now() - untimed) / LEAST_ROUNDS
  const rounds = clamp(Math.round(milliseconds / each), LEAST_ROUNDS, MOST_ROUNDS)
  const batch = performance.now()
  await driver.roundTrips(rounds)
  const mean = ((performance.now() - batch) / rounds) * 1000
  const times = new Float64Array(rounds)
  await driver.roundTrips(rounds, times)
  times.sort()
  const at = (share: number) => (times[Math.min(rounds - 1, Math.floor(rounds * share))] as number) * 1000
  return { p50: at(0.5), p99: at(0.99), p999: at(0.999), rounds, mean }
}

/**
 * One message at a time. With `times`, the clock is read once each round, when the answer is there and
 * before the next message goes: a round trip holds everything between two readings, the reading too.
 */
async function roundTrips(
  endpoint: Endpoint,
  ping: Uint8Array,
  rounds: number,
  times?: Float64Array,
): Promise<void> {
  let round = 0
  let finish = () => {}
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  let begin = performance.now()
  endpoint.receiver = () => {
    if (times !== undefined) {
      const now = performance.now()
      times[round] = now - begin
      begin = now
    }
    round++
    if (round < rounds) endpoint.send(ping)
    else finish()
  }
  endpoint.send(ping)
  if (endpoint.turn === undefined) await finished
  else await poll(endpoint, () => round === rounds)
}

/**
 * Messages one way, or requests: the median of five bursts that take about `milliseconds` in all, each from the first
 * message until the receiver has reported the last, after bursts of `warmUp` milliseconds.
 */
export async function rate(
  driver: Driver,
  size: number,
  milliseconds: number,
  warmUp: number,
): Promise<Rate> {
  const start = performance.now()
  const each = milliseconds / BURSTS
  let fastest = 0
  // Warms up, and finds out how many messages fill the time: the fastest burst tells, which nothing disturbed.
  for (let count = FIRST_COUNT; performance.now() - start < warmUp; ) {
    const took = await driver.burst(count)
    fastest = Math.max(fastest, count / took)
    if (took < each) count *= 2
  }
  const count = Math.max(LEAST_COUNT, Math.round(fastest * each))
  const times: number[] = []
  for (let i = 0; i < BURSTS; i++) times.push(await driver.burst(count))
  const messagesPerSecond = (count / median(times)) * 1000
  return { messagesPerSecond, mebibytesPerSecond: (messagesPerSecond * size) / 2 ** 20, count }
}

/** @returns milliseconds */
async function burst(endpoint: Endpoint, size: number, count: number): Promise<number> {
  const one = message(size, COUNT)
  const last = message(size, REPORT)
  let counted = -1
  let finish = () => {}
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  endpoint.receiver = (bytes, offset) => {
    counted = new DataView(bytes.buffer, bytes.byteOffset + offset).getUint32(0, true)
    finish()
  }
  const begin = performance.now()
  await endpoint.stream(one, count - 1)
  await endpoint.stream(last, 1)
  if (endpoint.turn === undefined) await finished
  else await poll(endpoint, () => counted >= 0)
  const took = performance.now() - begin
  if (counted !== count) throw new Error(`${counted} of ${count} messages arrived whole`)
  return took
}

export function message(size: number, what: number): Buffer<ArrayBuffer> {
  const bytes = Buffer.alloc(size, 0x5a)
  bytes[0] = what
  return bytes
}

const clamp = (value: number, least: number, most: number) => Math.max(least, Math.min(most, value))
