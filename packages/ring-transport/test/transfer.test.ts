// Large messages: their bytes, their place among the others, their memory, and every way in which one ends.
import { UsageError } from '@rdmakit/verbs'
import { afterEach, describe, expect, it } from 'vitest'
import type { ConnectOptions, RingMessage, RingOffer, RingServerOptions } from '../src/index.js'
import { Poller, RemoteError } from '../src/index.js'
import { type Pair, PROVIDERS, pair } from './helpers/pair.js'
import { pattern } from './helpers/processes.js'

const MIB = 2 ** 20
const LARGE = 300_000

const ends: Pair[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end[Symbol.asyncDispose]()
})

/** The next thing that an observable gives. */
function next<T>(observable: { subscribe(next: (value: T) => void): { unsubscribe(): void } }): Promise<T> {
  return new Promise((resolve) => {
    const subscription = observable.subscribe((value) => {
      queueMicrotask(() => subscription.unsubscribe())
      resolve(value)
    })
  })
}

function growing(seen: number[], length: number): void {
  expect(seen.at(-1)).toBe(length)
  for (let i = 1; i < seen.length; i++) expect(seen[i]).toBeGreaterThanOrEqual(seen[i - 1] as number)
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  async function connected(server: Partial<RingServerOptions> = {}, client: ConnectOptions = {}) {
    const made = await pair(uri(), server, client)
    ends.push(made)
    return made
  }

  describe('bytes', () => {
    it('come whole for lengths around every threshold, with their immediate', async () => {
      const { a, b } = await connected()
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
      ['256 KiB', {}, {}, 262_144],
      ['a quarter of the ring', {}, { capacity: 65_536 }, 16_384],
      ['what is asked for', { rendezvousThreshold: 1000 }, {}, 1000],
      ['what fits the ring', { rendezvousThreshold: 2 ** 20 }, { capacity: 8192 }, 4080],
    ])('go through the ring up to %s, and are read above', async (_, client, server, threshold) => {
      const { a, b } = await connected(server, client)
      b.messages.subscribe()
      await a.transmit(new Uint8Array(threshold))
      expect(b.statistics().reads).toBe(0)
      await a.transmit(new Uint8Array(threshold + 1))
      expect(b.statistics().reads).toBe(1)
    })
    it('go both ways at a time', async () => {
      const { a, b } = await connected()
      const sum = { a: 0, b: 0 }
      a.messages.subscribe(({ length }) => {
        sum.a += length
      })
      b.messages.subscribe(({ length }) => {
        sum.b += length
      })
      const bytes = pattern(LARGE, 1)
      const ways = [a, b].flatMap((one) => Array.from({ length: 100 }, () => one.transmit(bytes)))
      await Promise.all(ways)
      await expect.poll(() => sum).toEqual({ a: 100 * LARGE, b: 100 * LARGE })
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
      if (i % 3 === 0) sent.push(a.transmit(new Uint8Array(i % 2 === 0 ? LARGE : 400_000), { immediate: i }))
      else if (i % 3 === 1) sent.push(a.transmit(new Uint8Array(10), { immediate: i }))
      else while (!a.send(new Uint8Array(20), i)) await a.writable()
      if (sent.length % 50 === 49) await Promise.all(sent)
    }
    await Promise.all(sent)
    await expect.poll(() => order.length).toBe(200)
    expect(order).toEqual(Array.from({ length: 200 }, (_, i) => i))
  })

  it.each(['caller', 'event', 'poll'] as const)('come with a poller of mode %s', async (mode) => {
    const { a: other } = await connected()
    using poller = new Poller(other.context, { mode })
    const { a, b } = await pair(uri(), { poller }, { poller })
    try {
      const seen: boolean[] = []
      for (const one of [a, b])
        one.messages.subscribe((message) =>
          seen.push(Buffer.compare(message.data, pattern(message.length, message.immediate)) === 0),
        )
      for (let i = 0; i < 20; i++)
        await Promise.all([a, b].map((one) => one.transmit(pattern(LARGE, i), { immediate: i })))
      await expect.poll(() => seen.length).toBe(40)
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
    const deadline = Date.now() + 10_000
    while (order.length < 60 && Date.now() < deadline) {
      b.drain(({ immediate }) => order.push(immediate))
      await new Promise(setImmediate)
    }
    expect(order).toEqual(Array.from({ length: 60 }, (_, i) => i))
    await Promise.all(sent)
  })

  describe('memory', () => {
    it('is bounded: what is offered waits until messages are released', async () => {
      const { a, b } = await connected({ maxTransferMemory: 4 * MIB })
      const held: RingMessage[] = []
      b.messages.subscribe((message) => held.push(message.retain()))
      const sent: Promise<void>[] = []
      for (let i = 0; i < 10; i++) sent.push(a.transmit(pattern(MIB, i), { immediate: i }))
      await Promise.all(sent.slice(0, 4))
      await expect.poll(() => held.length).toBe(4)
      // A round trip later there is still none more.
      a.handle(() => new Uint8Array())
      await b.request(new Uint8Array())
      expect(held.length).toBe(4)
      for (let i = 0; i < 10; i++) {
        await expect.poll(() => held.length).toBeGreaterThan(i)
        const message = held[i] as RingMessage
        expect(message.immediate).toBe(i)
        expect(Buffer.compare(message.data, pattern(MIB, i))).toBe(0)
        message.release()
      }
      await Promise.all(sent)
    })
    it('of a message outlives the connection while it is retained', async () => {
      const { a, b } = await connected()
      const got = next<RingMessage>({ subscribe: (to) => b.messages.subscribe((one) => to(one.retain())) })
      await a.transmit(pattern(LARGE, 4))
      const message = await got
      await a.close()
      await b.closed
      expect(Buffer.compare(message.data, pattern(LARGE, 4))).toBe(0)
      message.release()
      expect(() => message.data).toThrow(UsageError)
    })
    it('is not there for more than maxMessageSize', async () => {
      const { a, b } = await connected({ maxTransferMemory: MIB, maxMessageSize: LARGE })
      const lengths: number[] = []
      b.messages.subscribe(({ length }) => lengths.push(length))
      const refused = a.transmit(new Uint8Array(LARGE + 1))
      await expect(refused).rejects.toBeInstanceOf(RemoteError)
      await expect(refused).rejects.toMatchObject({ code: 'EMSGSIZE' })
      await a.transmit(new Uint8Array(LARGE))
      await expect.poll(() => lengths).toEqual([LARGE])
    })
    it('is not there for what is refused, nor a place among the messages', async () => {
      const { a, b } = await connected({ maxMessageSize: LARGE })
      for (let i = 0; i < 3; i++)
        await expect(a.transmit(new Uint8Array(LARGE + 1))).rejects.toMatchObject({ code: 'EMSGSIZE' })
      expect(b.statistics()).toMatchObject({ messagesWaiting: 0, transfersInFlight: 0, transferMemory: 0 })
    })
    it('nor for what is withdrawn', async () => {
      const { a, b } = await connected({ maxTransferMemory: 2 * MIB })
      // Nobody takes it, so there is no memory for the second one.
      await a.transmit(new Uint8Array(MIB + 1))
      const abort = new AbortController()
      const sent = a.transmit(new Uint8Array(MIB + 1), { signal: abort.signal })
      await expect.poll(() => b.statistics().messagesWaiting).toBe(2)
      abort.abort(new Error('changed my mind'))
      await expect(sent).rejects.toThrow('changed my mind')
      await expect.poll(() => b.statistics()).toMatchObject({ messagesWaiting: 1, transfersInFlight: 0 })
    })
    it('waits in its place while nobody takes messages, and goes with close', async () => {
      const { a, b } = await connected()
      await a.transmit(new Uint8Array(LARGE))
      await a.transmit(new Uint8Array(LARGE))
      await b.close()
      expect(await a.closed).toBeUndefined()
    })
  })

  describe('offers', () => {
    it('are accepted into memory of the application', async () => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const sent = a.transmit(pattern(LARGE, 5), { immediate: 77 })
      const offer = await offered
      expect([offer.length, offer.immediate]).toEqual([LARGE, 77])
      const into = await b.allocate(MIB)
      await expect(offer.accept({ into, offset: MIB - LARGE + 1 })).rejects.toThrow(UsageError)
      await expect(offer.accept({ into: await a.allocate(MIB) })).rejects.toThrow(/not of this connection/)
      const part = into.protectionDomain.registerMemoryRegion(new Uint8Array(MIB).subarray(100))
      await expect(offer.accept({ into: part })).rejects.toThrow(/not a whole ArrayBuffer/)
      part.close()
      const progress: number[] = []
      const message = await offer.accept({ into, offset: 1000, onProgress: (bytes) => progress.push(bytes) })
      await sent
      expect(Buffer.compare(message.data, pattern(LARGE, 5))).toBe(0)
      expect(message.data.buffer).toBe(into.buffer)
      growing(progress, LARGE)
      await expect(offer.accept()).rejects.toThrow(/taken or refused already/)
    })
    it('are rejected with a reason', async () => {
      const { a, b } = await connected()
      b.offers.subscribe((offer) => {
        if (offer.immediate === 1) offer.reject(Object.assign(new Error('no disk'), { code: 'ENOSPC' }))
        else offer.reject()
      })
      await expect(a.transmit(new Uint8Array(LARGE), { immediate: 1 })).rejects.toMatchObject({
        name: 'RemoteError',
        code: 'ENOSPC',
        message: 'no disk',
      })
      await expect(a.transmit(new Uint8Array(LARGE))).rejects.toMatchObject({ code: 'ECANCELED' })
    })
    it('are taken chunk by chunk through two buffers', async () => {
      const { a, b } = await connected({ maxTransferMemory: MIB })
      const bytes = pattern(10 * MIB + 12_345, 6)
      const offered = next(b.offers)
      const seen: number[] = []
      const sent = a.transmit(bytes, { onProgress: (transferred) => seen.push(transferred) })
      const offer = await offered
      const buffers = new Set<number>()
      const progress: number[] = []
      let position = 0
      for await (const chunk of offer.chunks({
        chunkSize: 100_000,
        onProgress: (transferred) => progress.push(transferred),
      })) {
        expect(Buffer.compare(chunk, bytes.subarray(position, position + 100_000))).toBe(0)
        buffers.add(chunk.byteOffset)
        position += chunk.length
      }
      expect(position).toBe(bytes.length)
      expect(buffers.size).toBe(2)
      await sent
      growing(progress, bytes.length)
      growing(seen, bytes.length)
      expect(seen.length).toBeGreaterThan(5)
    })
    it('whose loop is left early are refused, and the next is served', async () => {
      const { a, b } = await connected()
      const offers: RingOffer[] = []
      b.offers.subscribe((offer) => offers.push(offer))
      const sent = a.transmit(new Uint8Array(8 * MIB))
      await expect.poll(() => offers.length).toBe(1)
      for await (const chunk of (offers[0] as RingOffer).chunks({ chunkSize: 65_536 })) {
        expect(chunk.length).toBe(65_536)
        break
      }
      await expect(sent).rejects.toMatchObject({ code: 'ECANCELED' })
      const again = a.transmit(pattern(LARGE, 1))
      await expect.poll(() => offers.length).toBe(2)
      const message = await (offers[1] as RingOffer).accept()
      expect(message.length).toBe(LARGE)
      message.release()
      await again
    })
    it('need chunks that fit', async () => {
      const { a, b } = await connected({ maxTransferMemory: MIB })
      const offered = next(b.offers)
      const sent = a.transmit(new Uint8Array(2 * MIB))
      const offer = await offered
      for (const chunkSize of [0, 4095, 1.5, MIB])
        expect(() => offer.chunks({ chunkSize })).toThrow(UsageError)
      await expect(offer.accept()).rejects.toMatchObject({ code: 'EMSGSIZE' })
      await expect(sent).rejects.toMatchObject({ code: 'EMSGSIZE' })
    })
    it('of more than 64 at a time wait for their turn', async () => {
      const { a, b } = await connected({}, { rendezvousThreshold: 0 })
      const offers: RingOffer[] = []
      b.offers.subscribe((offer) => offers.push(offer))
      const region = await a.allocate(5000)
      const sent = Array.from({ length: 100 }, (_, i) => a.transmit({ region }, { immediate: i }))
      await expect.poll(() => offers.length).toBe(64)
      for (let i = 0; i < 100; i++) {
        await expect.poll(() => offers.length).toBeGreaterThan(i)
        const message = await (offers[i] as RingOffer).accept()
        expect(message.immediate).toBe(i)
        message.release()
      }
      await Promise.all(sent)
    })
    it('of more than 64 at a time are not overtaken by those that come when there is room', async () => {
      const { a, b } = await connected({}, { rendezvousThreshold: 0 })
      const order: number[] = []
      const offers: RingOffer[] = []
      b.offers.subscribe((offer) => {
        offers.push(offer)
        order.push(offer.immediate)
      })
      const region = await a.allocate(5000)
      const sent = Array.from({ length: 66 }, (_, i) => a.transmit({ region }, { immediate: i }))
      // It comes right behind the end of the first: in the turn in which its place is free.
      a.messages.subscribe(() => sent.push(a.transmit({ region }, { immediate: 66 })))
      await expect.poll(() => offers.length).toBe(64)
      for (let i = 0; i < 67; i++) {
        await expect.poll(() => offers.length).toBeGreaterThan(i)
        ;(await (offers[i] as RingOffer).accept()).release()
        if (i === 0) expect(b.send(new Uint8Array(1))).toBe(true)
      }
      await Promise.all(sent)
      expect(order).toEqual(Array.from({ length: 67 }, (_, i) => i))
    })
    it('that wait for their turn give it up when they are aborted', async () => {
      const { a, b } = await connected({}, { rendezvousThreshold: 0 })
      const offers: RingOffer[] = []
      b.offers.subscribe((offer) => offers.push(offer))
      const region = await a.allocate(5000)
      const abort = new AbortController()
      const first = Array.from({ length: 64 }, (_, i) => a.transmit({ region }, { immediate: i }))
      const given = Array.from({ length: 10 }, () => a.transmit({ region }, { signal: abort.signal }))
      const last = a.transmit({ region }, { immediate: 99 })
      abort.abort(new Error('enough'))
      for (const one of given) await expect(one).rejects.toThrow('enough')
      await expect.poll(() => offers.length).toBe(64)
      for (let i = 0; i < 65; i++) {
        await expect.poll(() => offers.length).toBeGreaterThan(i)
        ;(await (offers[i] as RingOffer).accept()).release()
      }
      await Promise.all([...first, last])
      expect(offers.at(-1)?.immediate).toBe(99)
      // All 64 places are there again.
      const again = Array.from({ length: 64 }, () => a.transmit({ region }))
      await expect.poll(() => offers.length).toBe(129)
      for (const offer of offers.slice(65)) (await offer.accept()).release()
      await Promise.all(again)
    })
  })

  describe('ends', () => {
    it('an aborted sender rejects at once, and the offer is withdrawn', async () => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const abort = new AbortController()
      const sent = a.transmit(new Uint8Array(LARGE), { signal: abort.signal })
      const offer = await offered
      abort.abort(new Error('changed my mind'))
      await expect(sent).rejects.toThrow('changed my mind')
      await expect.poll(() => offer.signal.aborted).toBe(true)
      await expect(offer.accept()).rejects.toMatchObject({ code: 'ECANCELED' })
      // Its number and its memory are free again.
      b.messages.subscribe()
      expect(await a.close()).toBeUndefined()
      expect(await b.closed).toBeUndefined()
    })
    it('a sender that is aborted while it is read stops the reader', async () => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const abort = new AbortController()
      const sent = a.transmit(new Uint8Array(64 * MIB), { signal: abort.signal })
      const taken = (await offered).accept({ onProgress: () => abort.abort(new Error('stop')) })
      await expect(sent).rejects.toThrow('stop')
      await expect(taken).rejects.toMatchObject({ code: 'ECANCELED' })
      const message = next<number>({ subscribe: (to) => b.messages.subscribe(({ length }) => to(length)) })
      await a.transmit(new Uint8Array(10))
      expect(await message).toBe(10)
    })
    it('a sender that waits too long is told so', async () => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const sent = a.transmit(new Uint8Array(LARGE), { timeout: 50 })
      await offered
      await expect(sent).rejects.toMatchObject({ code: 'ETIMEDOUT' })
      for (const timeout of [0, Number.NaN, 2 ** 31])
        await expect(a.transmit(new Uint8Array(LARGE), { timeout })).rejects.toThrow(UsageError)
      await expect(a.transmit(new Uint8Array(LARGE), { signal: AbortSignal.abort() })).rejects.toThrow(
        /abort/,
      )
    })
    it('a small message that finds no room has a deadline too, and is not sent after it', async () => {
      const { a, b } = await connected({ capacity: 4096 })
      while (a.send(new Uint8Array(1000), 1)) a.flush()
      await expect(a.transmit(new Uint8Array(1000), { timeout: 20 })).rejects.toMatchObject({
        code: 'ETIMEDOUT',
      })
      const seen: number[] = []
      b.messages.subscribe(({ immediate }) => seen.push(immediate))
      await a.transmit(new Uint8Array(1000), { immediate: 2 })
      await expect.poll(() => seen.at(-1)).toBe(2)
      expect(seen).not.toContain(0)
    })
    it('a reader that gives up is done when it says so', async () => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const sent = a.transmit(new Uint8Array(64 * MIB))
      const abort = new AbortController()
      const taken = (await offered).accept({
        signal: abort.signal,
        onProgress: () => abort.abort(new Error('enough')),
      })
      await expect(taken).rejects.toThrow('enough')
      await expect(sent).rejects.toMatchObject({ code: 'EREMOTEIO', message: 'enough' })
    })
    it('close waits for what is under way', async () => {
      const { a, b } = await connected()
      const lengths: number[] = []
      b.messages.subscribe(({ length }) => lengths.push(length))
      const sent = [a.transmit(new Uint8Array(8 * MIB)), a.transmit(new Uint8Array(LARGE))]
      await a.close()
      await Promise.all(sent)
      expect(lengths).toEqual([8 * MIB, LARGE])
      await expect(a.transmit(new Uint8Array(LARGE))).rejects.toMatchObject({ code: 'ESHUTDOWN' })
    })
    it('a close of the reader waits for what it is offered', async () => {
      const { a, b } = await connected()
      const lengths: number[] = []
      b.messages.subscribe(({ length }) => lengths.push(length))
      const sent = a.transmit(new Uint8Array(16 * MIB))
      await b.close()
      await sent.then(
        () => expect(lengths).toEqual([16 * MIB]),
        ({ code }) => expect(code).toMatch(/ECONNRESET|ECANCELED/),
      )
    })
    it('a broken connection rejects both sides, and frees all', async () => {
      const { a, b } = await connected()
      const offers: RingOffer[] = []
      b.offers.subscribe((offer) => offers.push(offer))
      const sent = a.transmit(new Uint8Array(64 * MIB))
      const other = a.transmit(new Uint8Array(MIB))
      for (const one of [sent, other]) one.catch(() => {})
      await expect.poll(() => offers.length).toBe(2)
      const [offer, open] = offers as [RingOffer, RingOffer]
      const taken = offer.accept({ onProgress: () => void b.close({ drain: false }) })
      await expect(taken).rejects.toMatchObject({ code: expect.stringMatching(/ECANCELED|ECONNRESET/) })
      await expect(sent).rejects.toMatchObject({ code: 'ECONNRESET' })
      await expect(other).rejects.toMatchObject({ code: 'ECONNRESET' })
      await Promise.all([a.closed, b.closed])
      expect(open.signal.aborted).toBe(true)
      await expect(open.accept()).rejects.toMatchObject({ code: 'ECANCELED' })
    })
    it('what cannot be transmitted is refused', async () => {
      const { a, b } = await connected()
      const shared = new Uint8Array(new SharedArrayBuffer(LARGE))
      await expect(a.transmit(shared)).rejects.toThrow(UsageError)
      await expect(a.transmit({ region: await b.allocate(LARGE) })).rejects.toThrow(/not of this connection/)
      const region = await a.allocate(LARGE)
      await expect(a.transmit({ region, offset: 5, length: region.length })).rejects.toThrow(UsageError)
      await expect(a.transmit(new Uint8Array(1), { immediate: -1 })).rejects.toThrow(UsageError)
      region.close()
      await expect(a.transmit({ region })).rejects.toThrow(UsageError)
    })
    it('a callback that throws is an uncaught exception, and nothing else', async () => {
      const { a, b } = await connected()
      b.messages.subscribe()
      const caught: unknown[] = []
      const listeners = process.listeners('uncaughtException')
      process.removeAllListeners('uncaughtException')
      process.on('uncaughtException', (failure) => caught.push(failure))
      try {
        await a.transmit(new Uint8Array(LARGE), {
          onProgress: () => {
            throw new Error('of the callback')
          },
        })
        await expect.poll(() => caught.length).toBe(1)
      } finally {
        process.removeAllListeners('uncaughtException')
        for (const listener of listeners) process.on('uncaughtException', listener)
      }
    })
  })
})
