// Every way in which a large message ends before it is whole, and what is never begun.
import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import type { ConnectOptions, RingOffer, RingServerOptions } from '../../src/index.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { LARGE, MIB, next, READ_FROM } from '../helpers/transfers.js'

describe.each(PROVIDERS)('over %s', (_, uri) => {
  const connected = (server?: Partial<RingServerOptions>, client?: ConnectOptions) =>
    pairOfTest(uri(), { ...READ_FROM, ...server }, { ...READ_FROM, ...client })

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
    const late = expect(a.transmit(new Uint8Array(LARGE), { timeout: 50 })).rejects
    await Promise.all([offered, late.toMatchObject({ code: 'ETIMEDOUT' })])
    for (const timeout of [0, Number.NaN, 2 ** 31])
      await expect(a.transmit(new Uint8Array(LARGE), { timeout })).rejects.toThrow(UsageError)
    await expect(a.transmit(new Uint8Array(LARGE), { signal: AbortSignal.abort() })).rejects.toThrow(/abort/)
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
  it('a close of the reader loses nothing of what is under way, nor of what waits behind it', async () => {
    const { a, b } = await connected()
    const lengths: number[] = []
    b.messages.subscribe(({ length }) => lengths.push(length))
    let closing: Promise<void> | undefined
    const onProgress = () => {
      closing ??= b.close()
    }
    const sent = a.transmit(new Uint8Array(64 * MIB), { onProgress })
    while (!a.send(new Uint8Array(7))) await a.writable()
    await sent
    expect(closing).toBeDefined()
    await closing
    expect(lengths).toEqual([64 * MIB, 7])
  })
  it('one that ends while its memory is being registered was never offered, and what comes behind it goes', async () => {
    const { a, b } = await connected()
    const lengths: number[] = []
    b.messages.subscribe(({ length }) => lengths.push(length))
    const abort = new AbortController()
    const large = a.transmit(new Uint8Array(64 * MIB), { signal: abort.signal })
    const small = a.transmit(new Uint8Array(7))
    abort.abort(new Error('changed my mind'))
    await expect(large).rejects.toThrow('changed my mind')
    await small
    await expect.poll(() => lengths).toEqual([7])
    await a.transmit(new Uint8Array(5 * MIB))
    expect(lengths).toEqual([7, 5 * MIB])
  })
  it('a connection that breaks while memory is being registered rejects, and keeps none of it', async () => {
    const { a } = await connected()
    const large = a.transmit(new Uint8Array(64 * MIB))
    const broken = a.close({ drain: false })
    await expect(large).rejects.toMatchObject({ code: 'ECANCELED' })
    await broken
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
    await expect(a.transmit({ region: await b.allocate(LARGE) })).rejects.toThrow(
      /does not belong to this connection/,
    )
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
