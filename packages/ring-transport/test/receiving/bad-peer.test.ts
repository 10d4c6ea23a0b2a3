// Peers that break the protocol, played with bare verbs: each loses its own connection, no other.
import { ConnectionId, type SendWorkRequest } from '@rdmakit/verbs'
import { afterEach, describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type CloseReason, RingConnection, RingServer } from '../../src/index.js'
import { requestAllowance, requestCost } from '../../src/requests/allowance.js'
import { VERSIONS, type Version } from '../../src/setup/ring-layout.js'
import { connectBare } from '../helpers/bare-end.js'

const CAPACITY = 4096
const CREDIT = 0x80000000

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

/** A frame's header, as a peer may write it. */
interface Header {
  readonly length: number
  readonly type: number
  /** bits that mean nothing */
  readonly reserved?: number
}

/** A server, a good connection to it, and a bare queue pair that says what it likes in frames of a version. */
async function badPeer(version: Version) {
  const unit = version === 2 ? 64 : 16
  const reasons: Promise<CloseReason>[] = []
  const accepted: RingConnection[] = []
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    capacity: CAPACITY,
    onConnection(connection) {
      connection.handle((request) => request.copy())
      connection.messages.subscribe()
      reasons.push(connection.closed)
      accepted.push(connection)
    },
  })
  ends.push(() => server.close({ drain: false }))
  const good = await RingConnection.connect(server.uri)

  const id = await ConnectionId.resolve(server.uri)
  const pd = id.context.allocateProtectionDomain()
  ends.push(() => {
    id.close()
    pd.close()
  })
  const queue = id.context.createCompletionQueue({ entries: 1000 })
  const region = await pd.allocateMemoryRegion(65536, ['remote-write'])
  const queuePair = id.createQueuePair(pd, { sendQueue: queue, maxReceive: 128 })
  for (let i = 0; i < 100; i++) queuePair.postReceive({ data: [{ region, length: 8 }] })
  const ring = await connectBare(id, region, version)
  await expect.poll(() => accepted.length).toBe(2)
  const fields = new DataView(region.buffer, 8192)

  /** Writes a frame's header at a unit of the server's ring and publishes `units`. */
  function publish(units: number, { length, type, reserved = 0 }: Header, at = 0) {
    if (version === 2) {
      fields.setUint32(0, length, true)
      fields.setUint32(4, type | (reserved << 16), true)
      fields.setBigUint64(8, 0n, true)
    } else {
      fields.setUint32(0, ((length & 0xfff_ffff) | (type << 28)) >>> 0, true)
      fields.setBigUint64(4, 0n, true)
      fields.setUint32(12, reserved, true)
    }
    write({ immediate: units, data: [{ region, offset: 8192, length: 16 }], at })
  }
  function write({
    immediate,
    data = [],
    at = 0,
  }: {
    immediate: number
    data?: SendWorkRequest['data']
    at?: number
  }) {
    queuePair.postSend({
      opcode: 'rdma-write-with-immediate',
      immediate,
      data: data ?? [],
      remoteAddress: ring.address + BigInt(at * unit),
      remoteKey: ring.remoteKey,
    })
  }
  /** It was thrown out, and the good connection was not. */
  async function thrownOut(code: RegExp, saying: RegExp) {
    const reason = await reasons[1]
    expect(reason?.code).toMatch(code)
    expect(reason?.message).toMatch(saying)
    expect(await good.request(new Uint8Array([5]))).toEqual(new Uint8Array([5]))
  }
  return {
    publish,
    write,
    thrownOut,
    queue,
    queuePair,
    region,
    ring,
    victim: () => accepted[1] as RingConnection,
    /** units that the ring has */
    units: CAPACITY / unit,
    /** … and that a frame with so many bytes of payload takes */
    unitsOf: (length: number) => Math.ceil((16 + length) / unit),
  }
}

describe.each(VERSIONS)('in frames of version %i', (version) => {
  it('a good frame by bare verbs is taken', async () => {
    const { publish, victim, ring, unitsOf } = await badPeer(version)
    let count = 0
    victim().messages.subscribe((message) => {
      count += message.length
    })
    publish(unitsOf(40), { length: 40, type: 1 })
    await expect.poll(() => count).toBe(40)
    expect(ring.windows.log2Capacity).toBe(12)
  })

  it.each<[string, RegExp, (bad: Awaited<ReturnType<typeof badPeer>>) => void]>([
    ['a notification of nothing', /of nothing/, (bad) => bad.write({ immediate: 0 })],
    ['more than the ring holds', /more than the ring/, (bad) => bad.write({ immediate: bad.units + 1 })],
    [
      'more than the ring holds in sum',
      /more than the ring/,
      (bad) => {
        for (let i = 0; i < 70; i++) bad.publish(1, { length: 0, type: 1 }, i % bad.units)
        for (let i = 0; i < 10; i++) bad.write({ immediate: bad.units })
      },
    ],
    ['a credit for what was never sent', /a credit/, (bad) => bad.write({ immediate: CREDIT + 5 })],
    [
      'a credit for notifications never sent',
      /a credit/,
      (bad) => bad.write({ immediate: CREDIT + (3 << 21) }),
    ],
    ['a frame longer than what was published', /beyond/, (bad) => bad.publish(1, { length: 100, type: 1 })],
    [
      'a frame longer than half the ring',
      /beyond/,
      (bad) => bad.publish(bad.unitsOf(3000), { length: 3000, type: 1 }),
    ],
    ['a frame of absurd length', /beyond/, (bad) => bad.publish(1, { length: 0xffffffff, type: 1 })],
    ['an unknown type', /unknown type/, (bad) => bad.publish(1, { length: 0, type: 12 })],
    ['type zero', /unknown type/, (bad) => bad.publish(1, { length: 0, type: 0 })],
    [
      'flags that mean nothing',
      /unknown type or flags/,
      (bad) => bad.publish(1, { length: 0, type: 3, reserved: 1 }),
    ],
    ['a pad in the middle of the ring', /pad/, (bad) => bad.publish(1, { length: 0, type: 2 })],
    [
      'a notification of the wrong size',
      /wrong size/,
      (bad) => bad.queuePair.postSend({ opcode: 'send', data: [{ region: bad.region, length: 3 }] }),
    ],
  ])('%s', async (_, saying, act) => {
    const bad = await badPeer(version)
    act(bad)
    await bad.thrownOut(/^EPROTO$/, saying)
  })

  it('an answer that nobody asked for', async () => {
    const bad = await badPeer(version)
    bad.publish(1, { length: 0, type: 4 })
    await bad.thrownOut(/^EPROTO$/, /has not sent/)
  })

  it('requests beyond what it may ask: they wait in the ring, and cost no more memory than that', async () => {
    const bad = await badPeer(version)
    const signals: AbortSignal[] = []
    bad.victim().handle((_, { signal }) => {
      signals.push(signal)
      return new Promise(() => {})
    })
    const limit = requestAllowance(CAPACITY)
    const fits = Math.floor(limit / requestCost(0))
    for (let sent = 0; sent < fits + 30; sent++) {
      bad.publish(1, { length: 0, type: 3 }, sent % bad.units)
      await eventually(() => bad.victim().statistics().requestsRunning > sent)
      // Completed requests make room in its send queue.
      bad.queue.poll(16)
    }
    expect(signals).toHaveLength(fits)
    expect(bad.victim().statistics().requestMemory).toBe(fits * requestCost(0))
    await bad.victim().close({ drain: false })
    expect(signals.every(({ aborted }) => aborted)).toBe(true)
    expect(signals).toHaveLength(fits)
    expect(bad.victim().statistics()).toMatchObject({ requestsRunning: fits, messagesWaiting: 0 })
  })

  it('a request that is small enough for the memory that another waits for does not begin at the end', async () => {
    const bad = await badPeer(version)
    let begun = 0
    bad.victim().handle(() => {
      begun++
      return new Promise(() => {})
    })
    const limit = requestAllowance(CAPACITY)
    const few = Math.floor(limit / requestCost(0)) - 1
    const large = limit - few * requestCost(0) - requestCost(0) + 1
    expect(large).toBeLessThan(CAPACITY / 2 - 16)
    const lengths = [...Array.from({ length: few }, () => 0), large, 0]
    let at = 0
    for (const [sent, length] of lengths.entries()) {
      bad.publish(bad.unitsOf(length), { length, type: 3 }, at % bad.units)
      at += bad.unitsOf(length)
      await eventually(() => bad.victim().statistics().requestsRunning > sent)
      bad.queue.poll(16)
    }
    expect(begun).toBe(few)
    await bad.victim().close({ drain: false })
    expect(begun).toBe(few)
    expect(bad.victim().statistics()).toMatchObject({ requestsRunning: few, messagesWaiting: 0 })
  })

  it('messages after its close', async () => {
    const bad = await badPeer(version)
    bad.publish(1, { length: 0, type: 6 })
    bad.publish(1, { length: 0, type: 1 }, 1)
    await bad.thrownOut(/^EPROTO$/, /after its close/)
  })

  it('a notification that does not fit any receive', async () => {
    const bad = await badPeer(version)
    bad.queuePair.postSend({ opcode: 'send', data: [{ region: bad.region, length: 4096 }] })
    // The provider or the flushed queue pair is heard first.
    await bad.thrownOut(/^(EPROTO|ECONNRESET)$/, /./)
  })

  it('a write outside of the ring', async () => {
    const bad = await badPeer(version)
    bad.queuePair.postSend({
      opcode: 'rdma-write',
      data: [{ region: bad.region, length: 64 }],
      remoteAddress: bad.ring.address + 1_000_000n,
      remoteKey: bad.ring.remoteKey,
    })
    await bad.thrownOut(/^(EPROTO|ECONNRESET)$/, /./)
  })
})
