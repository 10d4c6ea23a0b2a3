import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import type { CompletionArray } from '../../src/index.js'
import { connectedPair, DEADLINE_MS, LISTEN_URI, pattern, REGION_BYTES } from './pair.js'

const MESSAGES = Math.min(effort(2000), REGION_BYTES / 4)

/** Polls until an array has taken `count` completions, handing each to `each`. */
async function drain(array: CompletionArray, count: number, each: (i: number) => void = () => {}) {
  const deadline = Date.now() + DEADLINE_MS
  let taken = 0
  while (taken < count) {
    if (Date.now() > deadline) throw new Error(`${taken} of ${count} completions after ${DEADLINE_MS} ms`)
    const got = array.poll()
    for (let i = 0; i < got; i++) each(i)
    taken += got
    if (got === 0) await new Promise((resolve) => setImmediate(resolve))
  }
  expect(taken).toBe(count)
}

describe(`prepared work requests on ${LISTEN_URI}`, () => {
  it('slots are set once and posted many at a time, with every field where it belongs', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const slots = client.queuePair.createSendSlots(64, [client.region])
    const done = client.completionQueue.createCompletionArray(64)
    client.bytes.set(pattern(64 * 100))
    for (let i = 0; i < 64; i++)
      slots.set(i, {
        opcode: 'rdma-write',
        workRequestId: 2 ** 40 + i,
        region: client.region,
        offset: i * 100,
        length: 100,
        remoteAddress: server.region.address + BigInt(i * 100),
        remoteKey: server.region.remoteKey,
        signaled: i % 16 === 15,
      })
    expect(slots.post(0, 64)).toBe(64)
    const ids: number[] = []
    await drain(done, 4, (i) => {
      expect(done.succeeded(i)).toBe(true)
      expect(done.status(i)).toBe('success')
      expect(done.queuePairNumber(i)).toBe(client.queuePair.number)
      ids.push(done.workRequestId(i))
    })
    expect(ids).toEqual([15, 31, 47, 63].map((i) => 2 ** 40 + i))
    // Edited in place: a read of what was written, behind it.
    client.bytes.fill(0, 10_000, 20_000)
    slots.set(0, {
      opcode: 'rdma-read',
      region: client.region,
      offset: 10_000,
      length: 6400,
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(slots.post(0, 1)).toBe(1)
    await drain(done, 1, (i) => expect(done.succeeded(i)).toBe(true))
    expect(Buffer.compare(client.bytes.subarray(10_000, 16_400), pattern(6400))).toBe(0)
  })

  it('receives and sends of many messages without an object for any of them', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const sends = client.queuePair.createSendSlots(1, [client.region])
    const receives = server.queuePair.createReceiveSlots(64, [server.region])
    const sent = client.completionQueue.createCompletionArray(64)
    const received = server.completionQueue.createCompletionArray(64)
    for (let i = 0; i < 64; i++)
      receives.set(i, { workRequestId: i, region: server.region, offset: i * 64, length: 64 })
    expect(receives.post(0, 64)).toBe(64)
    const words = new Uint32Array(client.region.buffer)
    const arrived = new Uint32Array(server.region.buffer)
    sends.set(0, { opcode: 'send', region: client.region, length: 4 })
    let posted = 0
    let seen = 0
    const wrong: number[] = []
    const deadline = Date.now() + DEADLINE_MS
    while (seen < MESSAGES) {
      if (Date.now() > deadline) throw new Error(`${seen} messages after ${DEADLINE_MS} ms`)
      while (posted < MESSAGES && posted < seen + 32) {
        words[posted] = posted
        sends.setLocal(0, posted * 4, 4)
        sends.setWorkRequestId(0, posted)
        if (sends.post(0, 1) === 0) break
        posted++
      }
      sent.poll()
      const got = received.poll()
      for (let i = 0; i < got; i++) {
        const slot = received.workRequestId(i)
        const right = received.succeeded(i) && received.byteLength(i) === 4 && arrived[slot * 16] === seen
        if (!right || receives.post(slot, 1) !== 1) wrong.push(seen)
        seen++
      }
      if (got === 0) await new Promise((resolve) => setImmediate(resolve))
    }
    expect(wrong).toEqual([])
  })

  it('a full queue is told by the count, not by an exception', async () => {
    using pair = await connectedPair({ maxReceive: 16 })
    const { server } = pair
    const slots = server.queuePair.createReceiveSlots(1024, [server.region])
    for (let i = 0; i < 1024; i++) slots.set(i, { region: server.region, length: 8 })
    const posted = slots.post(0, 1024)
    expect(posted).toBeGreaterThanOrEqual(16)
    expect(posted).toBeLessThan(1024)
    expect(slots.post(0, 1)).toBe(0)
  })

  it('refuses what lies outside of slots and regions, before the device sees it', async () => {
    using pair = await connectedPair()
    const { client } = pair
    const slots = client.queuePair.createSendSlots(4, [client.region])
    expect(() => slots.post(0, 5)).toThrow(/not that many slots/)
    expect(() => slots.post(5, 0)).toThrow(/not that many slots/)
    expect(() => slots.set(4, { opcode: 'send' })).toThrow(/a slot must be a whole number from 0 to 3/)
    slots.set(0, { opcode: 'send', region: client.region, length: 8, inline: true })
    slots.setLocal(0, client.region.length - 7, 8)
    expect(() => slots.post(0, 1)).toThrow(/outside of its regions/)
    slots.setLocal(0, 0, 8, 1)
    expect(() => slots.post(0, 1)).toThrow(/outside of its regions/)
    slots.setLocal(0, 0, 8)
    new Uint32Array(slots.buffer)[10] = 8 // IBV_WR_BIND_MW, which carries pointers
    expect(() => slots.post(0, 1)).toThrow(/unknown opcode/)
    slots.close()
    expect(() => slots.post(0, 1)).toThrow(/closed/)
  })

  it('slots end with the queue pair and with the regions that they name', async () => {
    using pair = await connectedPair()
    const { client } = pair
    const region = await client.protectionDomain.allocateMemoryRegion(4096)
    const slots = client.queuePair.createSendSlots(4, [region])
    region.close()
    expect(slots.closed).toBe(true)
    const others = client.queuePair.createSendSlots(4, [client.region])
    const array = client.completionQueue.createCompletionArray(4)
    client.queuePair.close()
    expect(others.closed).toBe(true)
    client.completionQueue.close()
    expect(() => array.poll()).toThrow(/closed/)
  })
})
