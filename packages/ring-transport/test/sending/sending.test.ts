import { firstValueFrom, map, take, toArray } from 'rxjs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { Poller, RingConnection } from '../../src/index.js'
import { PROVIDERS, pair } from '../helpers/pair.js'
import { differing, HANG_MS, type Peer, pattern, sendAll, startPeer } from '../helpers/processes.js'

const copies = (connection: RingConnection, count: number) =>
  firstValueFrom(
    connection.messages.pipe(
      map((message) => ({ bytes: message.copy(), immediate: message.immediate })),
      take(count),
      toArray(),
    ),
  )

describe.each(PROVIDERS)('over %s', (_, uri) => {
  let counts: Peer
  beforeAll(async () => {
    counts = await startPeer('counts', { uri: uri() })
  })
  afterAll(() => counts.stop())

  describe('a claim', () => {
    it('is written where it is sent from, whole or its first bytes, with an immediate', async () => {
      await using ends = await pair(uri())
      const got = copies(ends.b, 3)
      const view = ends.a.claim(100) as Uint8Array
      expect(view.buffer).toBe(ends.a.outgoing.buffer)
      view.set(pattern(100, 1))
      ends.a.commit(0xdeadbeef)
      ends.a.claim(1000)?.set(pattern(1000, 2))
      ends.a.commit(0, 10)
      ends.a.claim(0)
      ends.a.commit(0xffffffff)
      expect(await got).toEqual([
        { bytes: pattern(100, 1), immediate: 0xdeadbeef },
        { bytes: pattern(10, 2), immediate: 0 },
        { bytes: new Uint8Array(), immediate: 0xffffffff },
      ])
    })

    it('that is given up sends nothing', async () => {
      await using ends = await pair(uri())
      const got = copies(ends.b, 1)
      ends.a.claim(100)?.fill(1)
      ends.a.abort()
      ends.a.send(pattern(5, 5))
      expect(await got).toEqual([{ bytes: pattern(5, 5), immediate: 0 }])
    })

    it('is one at a time, and what is sent meanwhile waits for it', async () => {
      await using ends = await pair(uri())
      ends.b.handle((request) => request.copy())
      const got = copies(ends.b, 2)
      ends.a.claim(4)?.set(pattern(4, 1))
      expect(() => ends.a.claim(4)).toThrow(expect.objectContaining({ name: 'UsageError' }))
      expect(ends.a.send(pattern(4, 2))).toBe(false)
      const writable = ends.a.writable()
      const answer = ends.a.request(pattern(3, 3))
      ends.a.commit()
      expect(await answer).toEqual(pattern(3, 3))
      await writable
      ends.a.send(pattern(4, 2))
      expect((await got).map(({ bytes }) => bytes)).toEqual([pattern(4, 1), pattern(4, 2)])
    })

    it('that is larger than the ring, or absent, or exceeded is refused', async () => {
      await using ends = await pair(uri(), { capacity: 4096 })
      expect(() => ends.a.claim(ends.a.maxMessageLength + 1)).toThrow(
        expect.objectContaining({ code: 'EMSGSIZE' }),
      )
      expect(() => ends.a.commit()).toThrow(expect.objectContaining({ name: 'UsageError' }))
      expect(() => ends.a.abort()).toThrow(expect.objectContaining({ name: 'UsageError' }))
      ends.a.claim(10)
      for (const length of [11, -1, 0.5])
        expect(() => ends.a.commit(0, length)).toThrow(expect.objectContaining({ name: 'UsageError' }))
      ends.a.commit()
      await ends.a.close()
      expect(() => ends.a.claim(1)).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
    })

    it('finds no room in a full ring until the consumer releases', async () => {
      await using ends = await pair(uri(), { capacity: 4096 })
      let sent = 0
      while (ends.a.claim(1000) !== undefined) {
        ends.a.commit(sent++)
      }
      expect(sent).toBeGreaterThanOrEqual(3)
      const got = copies(ends.b, sent + 1)
      await ends.a.writable()
      expect(ends.a.claim(1000)).toBeDefined()
      ends.a.commit(sent)
      expect((await got).map(({ immediate }) => immediate)).toEqual(
        Array.from({ length: sent + 1 }, (_, i) => i),
      )
    })
  })

  it('sendBatch takes what there is room for and says how many', async () => {
    await using ends = await pair(uri(), { capacity: 4096 })
    const messages = Array.from({ length: 40 }, (_, i) => pattern(200, i))
    const taken = ends.a.sendBatch(messages)
    expect(taken).toBeGreaterThan(8)
    expect(taken).toBeLessThan(40)
    const got = copies(ends.b, 40)
    await ends.a.writable()
    await sendAll(ends.a, messages.slice(taken))
    const arrived = (await got).map(({ bytes }) => bytes)
    expect(differing(arrived, messages)).toEqual([])
  })

  describe.each(['caller', 'guarded', 'adaptive'] as const)('drain, poller %s', (mode) => {
    it('gives each message once, in order, in one object, through many wraps', async () => {
      const { context } = await contextOf(uri())
      using pollerA = new Poller(context, { mode })
      using pollerB = new Poller(context, { mode })
      await using ends = await pair(uri(), { poller: pollerB, capacity: 16384 }, { poller: pollerA })
      const { a, b } = ends
      const messages = effort(2000)
      let next = 0
      const wrong: number[] = []
      const seen = new Set<unknown>()
      const check = (message: Parameters<Parameters<RingConnection['drain']>[0]>[0]) => {
        seen.add(message)
        const { immediate, length, bytes, offset } = message
        const first = length > 0 ? bytes[offset] : next & 0xff
        if (immediate !== next || length !== (next * 37) % 700 || first !== (next & 0xff)) wrong.push(next)
        next++
      }
      const deadline = performance.now() + HANG_MS
      for (let i = 0; next < messages; ) {
        if (performance.now() > deadline) throw new Error(`stuck at ${next} of ${i}`)
        for (let burst = 0; burst < 40 && i < messages; burst++) {
          const length = (i * 37) % 700
          const at = a.place(length)
          if (at < 0) break
          if (length > 0) a.outgoing[at] = i & 0xff
          a.commit(i++)
        }
        a.flush()
        b.drain(check)
        pollerA.drain()
      }
      expect({ next, wrong }).toEqual({ next: messages, wrong: [] })
      expect(seen.size).toBe(1)
    })

    it('begins with what came before the connection was in the program’s hands', async () => {
      const { context } = await contextOf(uri())
      using poller = new Poller(context, { mode })
      await using connection = await RingConnection.connect(counts.uri, { poller, timeout: HANG_MS })
      // Still in the turn in which it was made: messages arrive, and cannot have been taken.
      const deadline = performance.now() + HANG_MS
      for (; connection.statistics().framesReceived < 5; poller.drain(5))
        if (performance.now() > deadline) throw new Error('nothing comes')
      const seen: number[] = []
      await expect
        .poll(() => {
          connection.drain(({ immediate }) => seen.push(immediate))
          return seen.length
        })
        .toBe(10)
      expect(seen).toEqual(Array.from({ length: 10 }, (_, i) => i))
    })

    it('takes at most its limit and what came before, and not beside another consumer', async () => {
      const { context } = await contextOf(uri())
      using poller = new Poller(context, { mode })
      await using ends = await pair(uri(), { poller }, {})
      await sendAll(
        ends.a,
        Array.from({ length: 10 }, (_, i) => pattern(8, i)),
      )
      const got: number[] = []
      await expect
        .poll(() => ends.b.drain((message) => got.push(message.copy()[0] as number), 3))
        .toBeGreaterThan(0)
      expect(got.length).toBeLessThanOrEqual(3)
      await expect
        .poll(() => {
          ends.b.drain((message) => got.push(message.copy()[0] as number), 3)
          return got.length
        })
        .toBe(10)
      expect(got).toEqual(Array.from({ length: 10 }, (_, i) => pattern(8, i)[0]))
      const subscription = ends.b.messages.subscribe()
      expect(() => ends.b.drain(() => {})).toThrow(expect.objectContaining({ name: 'UsageError' }))
      subscription.unsubscribe()
      expect(ends.b.drain(() => {})).toBe(0)
    })

    it('takes no limit but a whole number from 0, and reads nothing that has not come', async () => {
      const { context } = await contextOf(uri())
      using poller = new Poller(context, { mode })
      await using ends = await pair(uri(), { poller }, {})
      const got: unknown[] = []
      const take = (limit: number) => ends.b.drain((message) => got.push(message.copy()[0]), limit)
      await sendAll(ends.a, [pattern(8, 1), pattern(8, 2)])
      await expect.poll(() => take(1)).toBe(1)
      await sendAll(ends.a, [pattern(8, 3)])
      const refused = { name: 'UsageError', message: expect.stringMatching(/limit must be a whole number/) }
      for (const limit of [-1, -0.5, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 32]) {
        expect(() => take(limit)).toThrow(expect.objectContaining(refused))
        expect(() => poller.drain(limit)).toThrow(expect.objectContaining(refused))
      }
      expect([take(0), poller.drain(0)]).toEqual([0, 0])
      await expect.poll(() => take(2 ** 32 - 1) > 0 && got.length).toBe(3)
      expect(got).toEqual([1, 2, 3].map((seed) => pattern(8, seed)[0]))
    })

    it('survives a callback that throws: the message is gone, the next is there', async () => {
      const { context } = await contextOf(uri())
      using poller = new Poller(context, { mode })
      await using ends = await pair(uri(), { poller }, {})
      await sendAll(ends.a, [pattern(8, 1), pattern(8, 2)])
      const seen: number[] = []
      await expect
        .poll(() => {
          try {
            ends.b.drain((message) => {
              seen.push(message.copy()[0] as number)
              if (seen.length === 1) throw new Error('mine')
            })
          } catch (failure) {
            expect(failure).toMatchObject({ message: 'mine' })
          }
          return seen.length
        })
        .toBe(2)
      expect(seen).toEqual([pattern(8, 1)[0], pattern(8, 2)[0]])
    })
  })
})

/** The device behind an address. */
async function contextOf(uri: string) {
  await using ends = await pair(uri)
  return { context: ends.a.context }
}
