// Large messages: their bytes, and their place among the others.
import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { type ConnectOptions, Poller, type RingServerOptions } from '../../src/index.js'
import { PROVIDERS, pair, pairOfTest } from '../helpers/pair.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { LARGE, MIB, next, READ_FROM } from '../helpers/transfers.js'

describe.each(PROVIDERS)('over %s', (_, uri) => {
  const connected = (server?: Partial<RingServerOptions>, client?: ConnectOptions) =>
    pairOfTest(uri(), { ...READ_FROM, ...server }, { ...READ_FROM, ...client })

  describe('bytes', () => {
    it.each([
      ['by default', {}],
      ['read from 256 KiB on', READ_FROM],
      ['in parts up to 4 MiB', { rendezvousThreshold: 4 * MIB }],
    ])('come whole for lengths around every threshold, with their immediate, %s', async (_, client) => {
      const { a, b } = await pairOfTest(uri(), {}, client)
      const lengths = [0, 1, 262_143, 262_144, 262_145, MIB - 1, MIB, MIB + 1, 3 * MIB + 5, 9 * MIB]
      const seen: [number, number, boolean][] = []
      b.messages.subscribe((message) => {
        const same = Buffer.compare(message.data, pattern(message.length, message.immediate)) === 0
        seen.push([message.length, message.immediate, same])
      })
      for (const [i, length] of lengths.entries()) await a.transmit(pattern(length, i), { immediate: i })
      await expect.poll(() => seen.length).toBe(lengths.length)
      expect(seen).toEqual(lengths.map((length, i) => [length, i, true]))
    })
    it.each<[string, ConnectOptions, Partial<RingServerOptions>, number]>([
      ['a MiB', {}, {}, MIB],
      ['a MiB, also of a small ring', {}, { capacity: 4096 }, MIB],
      ['what is asked for', { rendezvousThreshold: 1000 }, {}, 1000],
      ['what is asked for, in parts', { rendezvousThreshold: 3 * MIB }, { capacity: 8192 }, 3 * MIB],
      ['what the peer takes', { rendezvousThreshold: 3 * MIB }, { maxMessageSize: 2 * MIB + 1 }, 2 * MIB],
      ['256 KiB where the peer takes no parts', {}, { wireVersions: [2] }, 262_144],
      ['a quarter of the ring there', {}, { wireVersions: [2], capacity: 65_536 }, 16_384],
      ['what fits the ring there', { rendezvousThreshold: MIB }, { wireVersions: [2], capacity: 8192 }, 4080],
    ])('go through the ring up to %s, and are read above', async (_, client, server, threshold) => {
      const { a, b } = await pairOfTest(uri(), server, client)
      b.messages.subscribe()
      await a.transmit(new Uint8Array(threshold))
      expect(b.statistics().reads).toBe(0)
      await a.transmit(new Uint8Array(threshold + 1))
      expect(b.statistics().reads).toBeGreaterThan(0)
    })
    it('of a region go through the ring up to a quarter of it, at most 256 KiB, and are read above', async () => {
      const { a, b } = await pairOfTest(uri(), { capacity: 65_536 })
      b.messages.subscribe()
      const region = await a.allocate(MIB)
      await a.transmit({ region, offset: 1, length: 16_384 })
      expect(b.statistics().reads).toBe(0)
      await a.transmit({ region, offset: 1, length: 16_385 })
      expect(b.statistics().reads).toBe(1)
    })
    it.each([READ_FROM, {}])('go both ways at a time: %j', async (options) => {
      const { a, b } = await pairOfTest(uri(), options, options)
      const sum = { a: 0, b: 0 }
      a.messages.subscribe(({ length }) => {
        sum.a += length
      })
      b.messages.subscribe(({ length }) => {
        sum.b += length
      })
      const bytes = pattern(LARGE, 1)
      const ways = [a, b].flatMap((one) => Array.from({ length: 40 }, () => one.transmit(bytes)))
      await Promise.all(ways)
      await expect.poll(() => sum).toEqual({ a: 40 * LARGE, b: 40 * LARGE })
    })
    it('of a region need no registration, and a slice is a message', async () => {
      const { a, b } = await connected()
      const region = await a.allocate(4 * MIB)
      new Uint8Array(region.buffer).set(pattern(4 * MIB, 3))
      const seen: Uint8Array[] = []
      b.messages.subscribe((message) => seen.push(message.copy()))
      await a.transmit({ region, offset: 100, length: LARGE })
      await a.transmit({ region, offset: 4 * MIB - 5 })
      await a.transmit({ region })
      await expect.poll(() => seen.length).toBe(3)
      const all = pattern(4 * MIB, 3)
      expect(Buffer.compare(seen[0] as Uint8Array, all.subarray(100, 100 + LARGE))).toBe(0)
      expect(Buffer.compare(seen[1] as Uint8Array, all.subarray(-5))).toBe(0)
      expect(Buffer.compare(seen[2] as Uint8Array, all)).toBe(0)
    })
    it('of a region over a view are never those before it', async () => {
      const { a, b } = await connected()
      const bytes = new Uint8Array(pattern(LARGE + 100, 3))
      const { protectionDomain } = await a.allocate(1)
      const region = protectionDomain.registerMemoryRegion(bytes.subarray(100), ['remote-read'])
      const got = next<Uint8Array>({ subscribe: (to) => b.messages.subscribe((one) => to(one.copy())) })
      // The peer reads what is large from the region's own address; what is small goes by the buffer.
      await expect(a.transmit({ region, length: 10 })).rejects.toThrow(UsageError)
      await a.transmit({ region })
      expect(Buffer.compare(await got, bytes.subarray(100))).toBe(0)
      const whole = protectionDomain.registerMemoryRegion(bytes, ['remote-read'])
      const small = next<Uint8Array>({ subscribe: (to) => b.messages.subscribe((one) => to(one.copy())) })
      await a.transmit({ region: whole, offset: 50, length: 10 })
      expect(Buffer.compare(await small, bytes.subarray(50, 60))).toBe(0)
      whole.close()
      region.close()
    })
    it('of a view that does not begin its buffer', async () => {
      const { a, b } = await connected()
      const bytes = pattern(LARGE + 77, 9).subarray(77)
      const got = next<Uint8Array>({ subscribe: (to) => b.messages.subscribe((one) => to(one.copy())) })
      await a.transmit(bytes)
      expect(Buffer.compare(await got, bytes)).toBe(0)
    })
  })

  it('keep their place among small messages', async () => {
    const { a, b } = await connected()
    const order: number[] = []
    b.messages.subscribe(({ immediate }) => order.push(immediate))
    const sent: Promise<void>[] = []
    for (let i = 0; i < 200; i++) {
      // The largest are registered off the JavaScript thread.
      const large = i % 30 === 0 ? 5 * MIB : i % 2 === 0 ? LARGE : 400_000
      if (i % 3 === 0) sent.push(a.transmit(new Uint8Array(large), { immediate: i }))
      else if (i % 3 === 1) sent.push(a.transmit(new Uint8Array(10), { immediate: i }))
      else while (!a.send(new Uint8Array(20), i)) await a.writable()
      if (sent.length % 50 === 49) await Promise.all(sent)
    }
    await Promise.all(sent)
    await expect.poll(() => order.length).toBe(200)
    expect(order).toEqual(Array.from({ length: 200 }, (_, i) => i))
  })

  it.each(['caller', 'adaptive', 'event', 'poll'] as const)('come with a poller of mode %s', async (mode) => {
    const { a: other } = await connected()
    using poller = new Poller(other.context, { mode })
    const { a, b } = await pair(uri(), { poller }, { poller })
    try {
      const seen: boolean[] = []
      for (const one of [a, b])
        one.messages.subscribe((message) =>
          seen.push(Buffer.compare(message.data, pattern(message.length, message.immediate)) === 0),
        )
      for (let i = 0; i < 10; i++)
        await Promise.all([a, b].map((one) => one.transmit(pattern(LARGE, i), { immediate: i })))
      await expect.poll(() => seen.length).toBe(20)
      expect(seen.every(Boolean)).toBe(true)
    } finally {
      await a.close()
      await b.closed
    }
  })

  it('keep it in drain too', async () => {
    const { a, b } = await connected()
    const order: number[] = []
    const sent: Promise<void>[] = []
    for (let i = 0; i < 60; i++) {
      if (i % 2 === 0) sent.push(a.transmit(new Uint8Array(LARGE), { immediate: i }))
      else expect(a.send(new Uint8Array(20), i)).toBe(true)
    }
    a.flush()
    const deadline = Date.now() + HANG_MS
    while (order.length < 60 && Date.now() < deadline) {
      b.drain(({ immediate }) => order.push(immediate))
      await new Promise(setImmediate)
    }
    expect(order).toEqual(Array.from({ length: 60 }, (_, i) => i))
    await Promise.all(sent)
  })
})
