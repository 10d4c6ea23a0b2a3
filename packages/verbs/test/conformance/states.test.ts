import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { describe, expect, it } from 'vitest'
import type { Context, Gid, QueuePair, QueuePairType } from '../../src/index.js'
import {
  completions,
  connectedPair,
  DEADLINE_MS,
  expectUnsupported,
  isRxe,
  isSiw,
  itRequires,
  LISTEN_URI,
  openContext,
  pattern,
  unsupported,
} from './pair.js'

const INIT = { state: 'init', partitionKeyIndex: 0, portNumber: 1 } as const
const KEY = 0x11111111
const IPV4_MAPPED = Uint8Array.from([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])

/** The GID that packets of this host may come from: RoCE v2 over IPv4 where there is one. */
function sourceGid(context: Context): Gid {
  const gids = context.queryGids()
  // RFC 4291 §2.5.5.2; a link-local one may have the two bytes of ones too, where the MAC's third is 0xff.
  const mapped = ({ gid }: Gid) => Buffer.compare(gid.subarray(0, 12), IPV4_MAPPED) === 0
  const found = gids.find((entry) => entry.type === 'RoCE v2' && mapped(entry)) ?? gids[0]
  if (found === undefined) throw new Error('the port has no GID')
  return found
}

/** A queue pair in a domain of its own, with memory and a queue. */
async function end(context: Context, type: QueuePairType) {
  const protectionDomain = context.allocateProtectionDomain()
  const completionQueue = context.createCompletionQueue({ entries: 64 })
  const region = await protectionDomain.allocateMemoryRegion(65_536, ['remote-read', 'remote-write'])
  const queuePair = protectionDomain.createQueuePair({ type, sendQueue: completionQueue })
  return { protectionDomain, completionQueue, region, bytes: new Uint8Array(region.buffer), queuePair }
}

function connect(queuePair: QueuePair, peer: QueuePair, source: Gid, mtu: 1024): void {
  const reliable = queuePair.type === 'rc'
  queuePair.modify({ ...INIT, access: ['remote-read', 'remote-write'] })
  queuePair.modify({
    state: 'rtr',
    addressVector: { gid: source.gid, sourceGidIndex: source.index },
    pathMtu: mtu,
    destinationQueuePairNumber: peer.number,
    receivePacketSequence: 77,
    ...(reliable ? { responderResources: 4, minReceiverNotReadyTimer: 12 } : {}),
  })
  queuePair.modify({
    state: 'rts',
    sendPacketSequence: 77,
    ...(reliable ? { initiatorDepth: 4, timeout: 14, retryCount: 7, receiverNotReadyRetryCount: 7 } : {}),
  })
}

describe(`queue pair states on ${LISTEN_URI}`, () => {
  it('goes from reset to init, and names what is missing', async () => {
    using device = await openContext()
    const { queuePair } = await end(device.context, 'rc')
    expect(queuePair.state).toBe('reset')
    expect(() => queuePair.modify({ state: 'init' })).toThrow(
      /from reset to init needs partitionKeyIndex, portNumber, access/,
    )
    expect(() => queuePair.modify({ state: 'rts' })).toThrow(/in state reset cannot go to rts/)
    queuePair.modify({ ...INIT, access: ['remote-read'] })
    expect(queuePair.state).toBe('init')
    expect(() => queuePair.modify({ state: 'rtr', pathMtu: 1024 })).toThrow(
      /needs addressVector, destinationQueuePairNumber, receivePacketSequence/,
    )
  })

  it('sends are refused before it is ready, receives may be posted from init on', async () => {
    using device = await openContext()
    const { queuePair, region, completionQueue } = await end(device.context, 'rc')
    expect(() => queuePair.postSend({ opcode: 'send', data: [{ region, length: 8 }] })).toThrow(
      expect.objectContaining({ verb: 'ibv_post_send' }),
    )
    queuePair.modify({ ...INIT, access: [] })
    queuePair.postReceive({ workRequestId: 6n, data: [{ region, length: 64 }] })
    queuePair.modify({ state: 'error' })
    expect(queuePair.state).toBe('error')
    expect(await completions(completionQueue, 1)).toMatchObject([{ status: 'flushed', workRequestId: 6n }])
  })

  it('a connected queue pair is in rts, and says what it was connected with', async () => {
    using pair = await connectedPair()
    expect(pair.client.queuePair.state).toBe('rts')
    expect(pair.client.queuePair.query().state).toBe('rts')
    expect(pair.client.queuePair.type).toBe('rc')
  })

  it('the error state stays, also while the connection ends', async () => {
    using pair = await connectedPair()
    const { id, queuePair } = pair.client
    let over = false
    void id.disconnected.then(() => {
      over = true
    })
    queuePair.moveToError()
    const seen = new Set([queuePair.state])
    id.disconnect()
    const deadline = Date.now() + DEADLINE_MS
    do {
      seen.add(queuePair.state)
      await new Promise((resolve) => setImmediate(resolve))
    } while (!over && Date.now() < deadline)
    expect(over).toBe(true)
    expect([...seen]).toEqual(['error'])
  })

  it('what is posted in the error state is flushed', async (test) => {
    using pair = await connectedPair()
    const { client } = pair
    client.queuePair.moveToError()
    expect(client.queuePair.state).toBe('error')
    if (isSiw(client.context)) return unsupported(test, 'siw takes posts in the error state and forgets them')
    client.queuePair.postSend({
      opcode: 'send',
      workRequestId: 1n,
      data: [{ region: client.region, length: 8 }],
    })
    if (isRxe(client.context)) {
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'flushed' }])
      return unsupported(test, 'rxe flushes no receive that is posted in the error state')
    }
    client.queuePair.postReceive({ workRequestId: 2n, data: [{ region: client.region, length: 8 }] })
    const flushed = await completions(client.completionQueue, 2)
    expect(flushed.map(({ status }) => status)).toEqual(['flushed', 'flushed'])
    expect(flushed.map(({ workRequestId }) => workRequestId).sort()).toEqual([1n, 2n])
  })

  itRequires(
    'datagram',
    'two reliable queue pairs connected by hand write, read and send',
    async () => {
      using device = await openContext()
      const source = sourceGid(device.context)
      const a = await end(device.context, 'rc')
      const b = await end(device.context, 'rc')
      connect(a.queuePair, b.queuePair, source, 1024)
      connect(b.queuePair, a.queuePair, source, 1024)
      expect(a.queuePair.query()).toMatchObject({
        state: 'rts',
        pathMtu: 1024,
        destinationQueuePairNumber: b.queuePair.number,
        retryCount: 7,
      })
      a.bytes.set(pattern(10_000))
      a.queuePair.postSend({
        opcode: 'rdma-write',
        data: [{ region: a.region, length: 10_000 }],
        remoteAddress: b.region.address,
        remoteKey: b.region.remoteKey,
      })
      expect(await completions(a.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      expect(Buffer.compare(b.bytes.subarray(0, 10_000), pattern(10_000))).toBe(0)
      b.queuePair.postReceive({ data: [{ region: b.region, offset: 20_000, length: 5000 }] })
      a.queuePair.postSend({ opcode: 'send', data: [{ region: a.region, length: 5000 }] })
      expect(await completions(b.completionQueue, 1)).toMatchObject([{ byteLength: 5000 }])
      a.protectionDomain.close()
      b.protectionDomain.close()
    },
    async (context) => {
      const { queuePair, protectionDomain } = await end(context, 'rc')
      queuePair.modify({ ...INIT, access: [] })
      expectUnsupported(() =>
        queuePair.modify({
          state: 'rtr',
          addressVector: { lid: 1 },
          pathMtu: 1024,
          destinationQueuePairNumber: 1,
          receivePacketSequence: 0,
          responderResources: 1,
          minReceiverNotReadyTimer: 1,
        }),
      )
      protectionDomain.close()
    },
  )

  itRequires(
    'datagram',
    'unreliable connected queue pairs write and send',
    async () => {
      using device = await openContext()
      const source = sourceGid(device.context)
      const a = await end(device.context, 'uc')
      const b = await end(device.context, 'uc')
      connect(a.queuePair, b.queuePair, source, 1024)
      connect(b.queuePair, a.queuePair, source, 1024)
      b.queuePair.postReceive({ data: [{ region: b.region, length: 3000 }] })
      a.bytes.set(pattern(3000))
      a.queuePair.postSend({ opcode: 'send', data: [{ region: a.region, length: 3000 }] })
      expect(await completions(b.completionQueue, 1)).toMatchObject([{ status: 'success', byteLength: 3000 }])
      expect(Buffer.compare(b.bytes.subarray(0, 3000), pattern(3000))).toBe(0)
      a.protectionDomain.close()
      b.protectionDomain.close()
    },
    (context) => {
      using protectionDomain = context.allocateProtectionDomain()
      using sendQueue = context.createCompletionQueue({ entries: 16 })
      expectUnsupported(() => protectionDomain.createQueuePair({ type: 'uc', sendQueue }))
    },
  )

  itRequires(
    'datagram',
    'datagrams arrive behind their global routing header, with their sender',
    async () => {
      using device = await openContext()
      const source = sourceGid(device.context)
      const a = await end(device.context, 'ud')
      const b = await end(device.context, 'ud')
      for (const { queuePair } of [a, b]) {
        expect(() => queuePair.modify({ ...INIT })).toThrow(/needs queueKey/)
        queuePair.modify({ ...INIT, queueKey: KEY })
        queuePair.modify({ state: 'rtr' })
        queuePair.modify({ state: 'rts', sendPacketSequence: 1 })
      }
      const addressHandle = a.protectionDomain.createAddressHandle({
        gid: source.gid,
        sourceGidIndex: source.index,
      })
      b.queuePair.postReceive({ data: [{ region: b.region, length: 2000 }] })
      a.bytes.set(pattern(1000))
      const data = [{ region: a.region, length: 1000 }]
      expect(() => a.queuePair.postSend({ opcode: 'send', data })).toThrow(/needs its destination/)
      expect(() => a.queuePair.createSendSlots(4, [a.region])).toThrow(/connected queue pairs/)
      a.queuePair.postSend({
        opcode: 'send-with-immediate',
        immediate: 99,
        data,
        destination: { addressHandle, queuePairNumber: b.queuePair.number, queueKey: KEY },
      })
      expect(await completions(b.completionQueue, 1)).toMatchObject([
        {
          status: 'success',
          byteLength: 1040,
          globalRoutingHeader: true,
          immediate: 99,
          sourceQueuePairNumber: a.queuePair.number,
        },
      ])
      expect(Buffer.compare(b.bytes.subarray(40, 1040), pattern(1000))).toBe(0)
      a.protectionDomain.close()
      b.protectionDomain.close()
    },
    (context) => {
      using protectionDomain = context.allocateProtectionDomain()
      using sendQueue = context.createCompletionQueue({ entries: 16 })
      expectUnsupported(() => protectionDomain.createQueuePair({ type: 'ud', sendQueue }))
      expectUnsupported(() => protectionDomain.createAddressHandle({ lid: 1 }))
    },
  )

  itRequires(
    'multicast',
    'a datagram to a group reaches who joined it',
    async () => {
      using device = await openContext()
      const source = sourceGid(device.context)
      const a = await end(device.context, 'ud')
      const b = await end(device.context, 'ud')
      // 224.0.0.77 as RoCE v2 maps it.
      const group = Uint8Array.from([...IPV4_MAPPED, 224, 0, 0, 77])
      for (const { queuePair } of [a, b]) {
        queuePair.modify({ ...INIT, queueKey: KEY })
        queuePair.modify({ state: 'rtr' })
        queuePair.modify({ state: 'rts', sendPacketSequence: 1 })
      }
      b.queuePair.attachMulticast(group)
      b.queuePair.detachMulticast(group)
      expect(() => b.queuePair.detachMulticast(group)).toThrow(
        expect.objectContaining({ verb: 'ibv_detach_mcast' }),
      )
      b.queuePair.attachMulticast(group)
      b.queuePair.postReceive({ data: [{ region: b.region, length: 2000 }] })
      // On RoCE the host's IP layer must be a member too, which rdma_join_multicast(3) sees to.
      const member = createSocket('udp4')
      member.bind(0)
      await once(member, 'listening')
      member.addMembership('224.0.0.77', source.gid.subarray(12).join('.'))
      a.bytes.set(pattern(100))
      const addressHandle = a.protectionDomain.createAddressHandle({
        gid: group,
        sourceGidIndex: source.index,
        hopLimit: 1,
      })
      a.queuePair.postSend({
        opcode: 'send',
        data: [{ region: a.region, length: 100 }],
        // IBTA: the queue pair number of every multicast datagram.
        destination: { addressHandle, queuePairNumber: 0xffffff, queueKey: KEY },
      })
      expect(await completions(a.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      expect(await completions(b.completionQueue, 1)).toMatchObject([
        { status: 'success', byteLength: 140, sourceQueuePairNumber: a.queuePair.number },
      ])
      expect(Buffer.compare(b.bytes.subarray(40, 140), pattern(100))).toBe(0)
      member.close()
      b.queuePair.detachMulticast(group)
      a.protectionDomain.close()
      b.protectionDomain.close()
    },
    async (context) => {
      const { queuePair, protectionDomain } = await end(context, 'rc')
      expectUnsupported(() => queuePair.attachMulticast(new Uint8Array(16)))
      protectionDomain.close()
    },
  )

  it('lists the GIDs of its port', async () => {
    using device = await openContext()
    for (const { gid, type } of device.context.queryGids()) {
      expect(gid.length).toBe(16)
      expect(type).toMatch(/^(IB|RoCE v1|RoCE v2|iWARP)$/)
    }
    expect(() => device.context.queryGids(9)).toThrow(expect.objectContaining({ name: 'VerbsError' }))
  })
})
