// Offers of large messages: accepted, rejected, taken in chunks, and in their turn.
import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import type { ConnectOptions, RingOffer, RingServerOptions } from '../../src/index.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { pattern } from '../helpers/processes.js'
import { growing, LARGE, MIB, next, READ_FROM } from '../helpers/transfers.js'

describe.each(PROVIDERS)('over %s', (_, uri) => {
  const connected = (server?: Partial<RingServerOptions>, client?: ConnectOptions) =>
    pairOfTest(uri(), { ...READ_FROM, ...server }, { ...READ_FROM, ...client })

  it('are accepted into memory of the application', async () => {
    const { a, b } = await connected()
    const offered = next(b.offers)
    const sent = a.transmit(pattern(LARGE, 5), { immediate: 77 })
    const offer = await offered
    expect([offer.length, offer.immediate]).toEqual([LARGE, 77])
    const into = await b.allocate(MIB)
    await expect(offer.accept({ into, offset: MIB - LARGE + 1 })).rejects.toThrow(UsageError)
    await expect(offer.accept({ into: await a.allocate(MIB) })).rejects.toThrow(
      /does not belong to this connection/,
    )
    for (const offset of [1000, -1, Number.NaN])
      await expect(offer.accept({ offset })).rejects.toThrow(/offset is a place/)
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
  it('whose chunks are left while they wait for memory are refused at once', async () => {
    const { a, b } = await connected({ maxTransferMemory: MIB })
    const offers: RingOffer[] = []
    b.offers.subscribe((offer) => offers.push(offer))
    const sent = [a.transmit(pattern(MIB, 1)), a.transmit(pattern(MIB, 2))]
    await expect.poll(() => offers.length).toBe(2)
    const [first, second] = offers as [RingOffer, RingOffer]
    const message = await first.accept()
    const chunks = second.chunks()
    const waiting = chunks.next()
    expect(await chunks.return()).toEqual({ done: true, value: undefined })
    expect(await waiting).toEqual({ done: true, value: undefined })
    await sent[0]
    await expect(sent[1]).rejects.toMatchObject({ code: 'ECANCELED' })
    expect(Buffer.compare(message.data, pattern(MIB, 1))).toBe(0)
    message.release()
  })
  it.each(['return', 'throw'] as const)(
    'whose chunks are left before the first are refused: %s',
    async (way) => {
      const { a, b } = await connected()
      const offered = next(b.offers)
      const sent = a.transmit(pattern(MIB, 1))
      const chunks = (await offered).chunks()
      await chunks[way](new Error('mine') as never).catch(() => {})
      await expect(sent).rejects.toMatchObject({ name: 'RemoteError', code: 'ECANCELED' })
      expect(await chunks.next()).toEqual({ done: true, value: undefined })
      expect(b.statistics()).toMatchObject({ transfersInFlight: 0, transferMemory: 0 })
    },
  )
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
    for (const chunkSize of [0, 4095, 1.5, MIB]) expect(() => offer.chunks({ chunkSize })).toThrow(UsageError)
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
