// The counters of connections and pollers, and how Prometheus reads them.
import { UsageError } from '@rdmakit/verbs'
import { Registry } from 'prom-client'
import { afterEach, describe, expect, it } from 'vitest'
import { Poller, RingClient, RingConnection, type RingMessage, RingServer } from '../../src/index.js'
import { collectRingMetrics } from '../../src/metrics.js'
import { type Pair, PROVIDERS, pair } from '../helpers/pair.js'
import { READ_FROM } from '../helpers/transfers.js'

const ends: AsyncDisposable[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end[Symbol.asyncDispose]()
})

/** Samples of a text in Prometheus's format, by name and labels; and the type of each metric. */
function parse(text: string) {
  const samples = new Map<string, number>()
  const types = new Map<string, string>()
  const helped = new Set<string>()
  for (const line of text.split('\n')) {
    if (line === '') continue
    const comment = /^# (HELP|TYPE) ([a-z_]+) (.+)$/.exec(line)
    if (comment !== null) {
      const [, kind, name, rest] = comment as unknown as [string, string, string, string]
      if (kind === 'TYPE') types.set(name, rest)
      else helped.add(name)
      continue
    }
    const sample = /^([a-z_]+)(\{(?:[a-z]+="[^"]*",?)*\})? (-?[0-9.e+-]+)$/.exec(line)
    expect(sample, line).not.toBeNull()
    const [, name, labels = '', value] = sample as unknown as [string, string, string, string]
    expect(samples.has(name + labels), `${name}${labels} twice`).toBe(false)
    samples.set(name + labels, Number(value))
  }
  expect([...types.keys()].every((name) => helped.has(name))).toBe(true)
  return { samples, types, of: (name: string) => samples.get(`rdmakit_ring_${name}`) }
}

describe.each(PROVIDERS)('statistics over %s', (_, uri) => {
  async function connected(): Promise<Pair> {
    const made = await pair(uri(), READ_FROM, READ_FROM)
    ends.push(made)
    return made
  }

  it('count what was sent and received at both ends', async () => {
    const { a, b } = await connected()
    let got = 0
    b.messages.subscribe(() => got++)
    b.handle((request) => request.copy())
    for (let i = 0; i < 100; i++) expect(a.send(new Uint8Array(50))).toBe(true)
    await a.request(new Uint8Array(20))
    await a.transmit(new Uint8Array(300_000))
    await expect.poll(() => got).toBe(101)
    // 100 messages, a request, an offer; back came a response and the offer's end.
    const [here, there] = [a.statistics(), b.statistics()]
    expect(here).toMatchObject({
      framesSent: 102,
      bytesSent: 5000 + 20 + 24,
      framesReceived: 2,
      bytesReceived: 20,
    })
    expect(there).toMatchObject({
      framesReceived: 102,
      bytesReceived: 5000 + 20 + 24,
      framesSent: 2,
      bytesSent: 20,
    })
    expect(there.reads).toBe(1)
    expect(here.notificationsSent).toBe(there.notificationsReceived)
    expect(here.notificationsSent).toBeLessThan(102)
    expect(here.inlineShare).toBeGreaterThan(0)
    expect(here.inlineShare).toBeLessThanOrEqual(1)
    expect(here.workRequests).toBeGreaterThanOrEqual(here.doorbells)
    expect(here).toMatchObject({ requestsInFlight: 0, messagesWaiting: 0, transfersInFlight: 0 })
    for (const value of Object.values(here)) expect(value).toBeGreaterThanOrEqual(0)
  })
  it('of a server and a client count nothing as under way that has ended undone', async () => {
    const { a, b, server } = await connected()
    const one = new RingClient(server.uri, { reconnect: { min: 60_000, max: 60_000 } })
    await one.opened()
    await expect.poll(() => server.connections.size).toBe(2)
    const other = [...server.connections].find((each) => each !== b) as RingConnection
    other.handle(() => new Promise(() => {}))
    const held: RingMessage[] = []
    const subscription = b.views.subscribe((message) => held.push(message.retain()))
    await a.transmit(new Uint8Array(300_000))
    await expect.poll(() => held.length).toBe(1)
    subscription.unsubscribe()
    expect(a.send(new Uint8Array(1))).toBe(true)
    one.request(new Uint8Array(1)).catch(() => {})
    expect(other.send(new Uint8Array(1))).toBe(true)
    await expect.poll(() => server.statistics()).toMatchObject({ messagesWaiting: 1, requestsRunning: 1 })
    expect(server.statistics().transferMemory).toBeGreaterThanOrEqual(300_000)
    await a.close({ drain: false })
    await one.close({ drain: false })
    await expect.poll(() => server.connections.size).toBe(0)
    const nothing = {
      requestsInFlight: 0,
      requestsRunning: 0,
      messagesWaiting: 0,
      transfersInFlight: 0,
      transferMemory: 0,
    }
    expect(server.statistics()).toMatchObject({ ...nothing, framesReceived: 3 })
    expect(one.statistics()).toMatchObject({ ...nothing, framesSent: 1 })
    for (const message of held) message.release()
  })
  it('tell what is under way', async () => {
    const { a, b } = await connected()
    let answer = () => {}
    b.handle(
      () =>
        new Promise((resolve) => {
          answer = () => resolve(new Uint8Array())
        }),
    )
    b.offers.subscribe()
    const request = a.request(new Uint8Array())
    const sent = a.transmit(new Uint8Array(300_000))
    sent.catch(() => {})
    expect(a.send(new Uint8Array(1))).toBe(true)
    await expect.poll(() => b.statistics().messagesWaiting).toBe(1)
    expect(a.statistics()).toMatchObject({ requestsInFlight: 1, transfersInFlight: 1 })
    expect(b.statistics()).toMatchObject({ requestsRunning: 1, transfersInFlight: 1 })
    answer()
    await request
    expect(a.statistics().requestsInFlight).toBe(0)
  })
  it('count stalls when there is no room, and stay when the connection has ended', async () => {
    const { a } = await connected()
    while (a.send(new Uint8Array(10_000))) a.flush()
    expect(a.statistics().stalls).toBeGreaterThan(0)
    const { framesSent } = a.statistics()
    await a.close({ drain: false })
    expect(a.statistics().framesSent).toBe(framesSent)
    expect(a.statistics().doorbells).toBeGreaterThan(0)
  })
  it('measure the latency of requests from when somebody looks', async () => {
    const { a, b } = await connected()
    b.handle((request) => request.copy())
    await a.request(new Uint8Array(1))
    expect(a.requestLatency.count).toBe(0)
    for (let i = 0; i < 50; i++) await a.request(new Uint8Array(1))
    const latency = a.requestLatency
    expect(latency.count).toBe(50)
    expect(latency.min).toBeGreaterThan(1000)
    expect(latency.percentile(50)).toBeGreaterThanOrEqual(latency.min * 0.99)
    expect(latency.percentile(99.9)).toBeLessThanOrEqual(latency.max)
    expect(latency.max).toBeLessThan(5e9)
  })
})

it('a poller counts its turns, completions and sleeps', async () => {
  const made = await pair('iwarp://127.0.0.1:0')
  ends.push(made)
  using poller = new Poller(made.a.context, { mode: 'event' })
  const connection = await RingConnection.connect(made.server.uri, { poller, heartbeat: 0 })
  await expect.poll(() => poller.statistics().sleeps).toBeGreaterThan(0)
  for (let i = 0; i < 20; i++) expect(connection.send(new Uint8Array(10))).toBe(true)
  await connection.request(new Uint8Array(1)).catch(() => {})
  const { turns, completions, doorbells, connections } = poller.statistics()
  expect(connections).toBe(1)
  expect(completions).toBeGreaterThan(0)
  expect(doorbells).toBeGreaterThan(0)
  expect(turns).toBeGreaterThan(0)
  await connection.close()
})

describe('Prometheus', () => {
  it('reads the sums of a server’s connections, also of those that have ended', async () => {
    const server = await RingServer.listen('iwarp://127.0.0.1:0', {
      onConnection: (connection) => {
        connection.handle((request) => request.copy())
        connection.messages.subscribe()
      },
    })
    ends.push(server)
    const registry = new Registry()
    collectRingMetrics(registry, { server, pollers: [] })
    const one = await RingConnection.connect(server.uri)
    const two = await RingConnection.connect(server.uri)
    await one.request(new Uint8Array(30))
    await two.request(new Uint8Array(12))
    const first = parse(await registry.metrics())
    expect(first.of('connections')).toBe(2)
    expect(first.of('received_frames_total')).toBe(2)
    expect(first.of('received_bytes_total')).toBe(42)
    expect(first.of('sent_bytes_total')).toBe(42)
    expect(first.of('server_accepted_total')).toBe(2)
    for (const [name, type] of first.types) {
      expect(name).toMatch(/^rdmakit_ring_/)
      expect(type).toBe(
        name.endsWith('_total') ? 'counter' : name.endsWith('latency_seconds') ? 'summary' : 'gauge',
      )
    }
    await one.close()
    await expect.poll(() => server.connections.size).toBe(1)
    const second = parse(await registry.metrics())
    expect(second.of('connections')).toBe(1)
    // The request, and what ended it.
    expect(second.of('received_frames_total')).toBe(3)
    expect(second.of('received_bytes_total')).toBe(42)
    for (const [name, value] of first.samples)
      if (name.endsWith('_total')) expect(second.samples.get(name), name).toBeGreaterThanOrEqual(value)
    expect(server.statistics().framesReceived).toBe(3)
    await two.close()
  })
  it('reads the latency of requests as a summary in seconds', async () => {
    const made = await pair('iwarp://127.0.0.1:0')
    ends.push(made)
    const { a, b } = made
    let answering = 0
    b.handle(async (request) => {
      const begin = performance.now()
      await new Promise((resolve) => setTimeout(resolve, 2))
      answering += (performance.now() - begin) / 1000
      return request.copy()
    })
    const registry = new Registry()
    collectRingMetrics(registry, { connections: [a] })
    const before = parse(await registry.metrics())
    expect(before.of('request_latency_seconds_count')).toBe(0)
    expect(before.of('request_latency_seconds{quantile="0.99"}')).toBe(0)
    // Each takes no longer than it does to who waits for it, and no shorter than its answer takes.
    let seconds = 0
    for (let i = 0; i < 50; i++) {
      const begin = performance.now()
      await a.request(new Uint8Array(1))
      seconds += (performance.now() - begin) / 1000
    }
    const { of } = parse(await registry.metrics())
    expect(of('request_latency_seconds_count')).toBe(50)
    const sum = of('request_latency_seconds_sum') as number
    expect(sum).toBeGreaterThan(answering)
    expect(sum).toBeLessThan(seconds * 1.02)
    const quantiles = [0.5, 0.9, 0.99, 0.999].map(
      (q) => of(`request_latency_seconds{quantile="${q}"}`) as number,
    )
    expect(quantiles[0]).toBeGreaterThan(1e-6)
    for (let i = 1; i < 4; i++) expect(quantiles[i]).toBeGreaterThanOrEqual(quantiles[i - 1] as number)
  })
  it('reads connections that a function names, a client, and pollers by their label', async () => {
    const made = await pair('iwarp://127.0.0.1:0')
    ends.push(made)
    const { b, server } = made
    b.handle((request) => request.copy())
    for (const connection of server.connections) connection.handle((request) => request.copy())
    const client = new RingClient(server.uri)
    ends.push(client)
    await client.opened()
    const registry = new Registry()
    const pollers = [Poller.shared(b.context)]
    collectRingMetrics(registry, { client, connections: () => server.connections, pollers })
    await client.request(new Uint8Array(9)).catch(() => {})
    const { of } = parse(await registry.metrics())
    // The client's, and two at the server.
    expect(of('connections')).toBe(3)
    expect(of('poller_completions_total{poller="0"}')).toBeGreaterThan(0)
    expect(client.statistics().framesSent).toBe(1)
  })
  it('is told nothing twice, and nothing more when the metrics are taken off', async () => {
    const made = await pair('iwarp://127.0.0.1:0')
    ends.push(made)
    const registry = new Registry()
    const off = collectRingMetrics(registry, { connections: [made.a] })
    expect(() => collectRingMetrics(registry, { connections: [made.a] })).toThrow(/already been registered/)
    off()
    expect(await registry.metrics()).toBe('\n')
    collectRingMetrics(registry, { connections: [made.a, made.a] })
    expect(parse(await registry.metrics()).of('connections')).toBe(1)
    expect(() => collectRingMetrics(new Registry(), {})).toThrow(UsageError)
  })
})
