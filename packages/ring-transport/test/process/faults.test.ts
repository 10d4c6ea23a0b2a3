// Faults that occurred once, or would have: each case failed before its fix.
import { deferred } from '@rdmakit/verbs/internal'
import { lastValueFrom, NEVER, type Subscription, take, toArray } from 'rxjs'
import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { growth } from '../../../../test/growth.js'
import { type ConnectOptions, Poller, RingConnection, type RingMessage, RingServer } from '../../src/index.js'
import { type Pair, PROVIDERS, pair } from '../helpers/pair.js'
import { differing, HANG_MS, pattern, sendAll, startPeer } from '../helpers/processes.js'
import { descriptors, residentBytes } from '../helpers/resources.js'

const UsageError = expect.objectContaining({ name: 'UsageError' })

/** The ring of `a` is not free behind a message that it retains. @returns what releases it */
async function blockedRing({ a, b }: Pair): Promise<() => void> {
  const held: RingMessage[] = []
  a.views.subscribe((message) => held.push(message.retain()))
  b.send(pattern(8, 1))
  await expect.poll(() => held.length).toBe(1)
  return () => held[0]?.release()
}

/** That a peer loses its connection which holds its ring, and asks for `asks` answers of 100 kB. */
async function losesUntaken(uri: string, asks: number, options: ConnectOptions = {}): Promise<void> {
  await using ends = await pair(uri, options, { capacity: 2 ** 20 })
  const release = await blockedRing(ends)
  // All of them begin before the first has answered, or the memory would be bounded without an end of the connection.
  const { promise: allBegun, resolve: begin } = deferred<void>()
  let begun = 0
  ends.b.handle(async () => {
    if (++begun === asks) begin()
    await allBegun
    return new Uint8Array(100_000)
  })
  const asked = Array.from({ length: asks }, () => ends.a.request(new Uint8Array(8), { timeout: HANG_MS }))
  for (const one of asked) one.catch(() => {})
  expect(await ends.b.closed).toMatchObject({ code: 'ENOBUFS' })
  release()
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  it('a peer that asks and takes no answers loses its connection, not this process its memory', () =>
    // Behind 32 MiB of answers that wait, no more handlers would begin.
    losesUntaken(uri(), 2000))

  it('such a peer loses its connection as early as this end wishes', () =>
    losesUntaken(uri(), 20, { maxResponseMemory: 2 ** 16 }))

  it('what a peer may take of memory is counted: rings, its requests, and answers that it does not take', async () => {
    const capacity = 2 ** 16
    await using ends = await pair(uri(), { capacity }, { capacity })
    const rings = 2 * (capacity + 2 ** 14) // with the smaller window
    expect([ends.a.memory, ends.b.memory]).toEqual([rings, rings])
    const release = await blockedRing(ends)
    const asked = 8
    const { promise: allBegun, resolve: begin } = deferred<void>()
    let begun = 0
    ends.b.handle(async () => {
      if (++begun === asked) begin()
      await allBegun
      return new Uint8Array(20_000)
    })
    const answers = Array.from({ length: asked }, () =>
      ends.a.request(new Uint8Array(8), { timeout: HANG_MS }),
    )
    // The ring has room for two or three of them, until what comes before them is released.
    await expect.poll(() => ends.b.memory).toBeGreaterThan(rings + 5 * 20_000)
    expect(ends.b.memory).toBeLessThan(rings + asked * 22_000)
    release()
    await Promise.all(answers)
    await expect.poll(() => ends.b.memory).toBe(rings)
  })

  it('many large answers at once wait for their turn, and break nothing', async () => {
    await using ends = await pair(uri())
    ends.b.handle(({ immediate }) => pattern(100_000, immediate))
    const asked = Array.from({ length: 2000 }, (_, immediate) =>
      ends.a.request(new Uint8Array(8), { immediate, timeout: HANG_MS }).then(({ length }) => length),
    )
    expect(new Set(await Promise.all(asked))).toEqual(new Set([100_000]))
    expect(ends.b.statistics().requestMemory).toBe(0)
  })

  it('messages that nobody took before the end are there for who comes late, and hold no ring', async () => {
    let arrive: (accepted: RingConnection) => void = () => {}
    const server = await RingServer.listen(uri(), { onConnection: (accepted) => arrive(accepted) })
    const lose = async () => {
      const arrived = new Promise<RingConnection>((resolve) => {
        arrive = resolve
      })
      const connection = await RingConnection.connect(server.uri)
      const accepted = await arrived
      connection.send(pattern(100, 7))
      await connection.close()
      await accepted.closed
      return accepted
    }
    const late = await lose()
    for (let i = 0; i < 10; i++) await lose()
    const before = descriptors()
    const lost = effort(40)
    const loseMany = async () => {
      for (let i = 0; i < lost; i++) await lose()
    }
    // Each had a ring of a MiB and more, touched or not, and a protection domain.
    const limit = (lost / 2) * 2 ** 20
    expect(await growth(residentBytes, loseMany, limit)).toBeLessThan(limit)
    expect(descriptors()).toBeLessThanOrEqual(before + 3)
    const got = await lastValueFrom(late.consume((message) => [message.copy()]).pipe(toArray()))
    expect(got).toEqual([pattern(100, 7)])
    await server.close()
  })

  it('a message stays readable for a promise that works on it when another has failed', async () => {
    await using ends = await pair(uri())
    let go = () => {}
    const gone = new Promise<void>((resolve) => {
      go = resolve
    })
    let slow: RingMessage | undefined
    let number = 0
    const failing = lastValueFrom(
      ends.b.consumeViews(async (message) => {
        if (number++ > 0) throw new Error('the second')
        slow = message
        await gone
      }, 2),
    )
    await sendAll(ends.a, [pattern(100, 1), pattern(100, 2)])
    await expect(failing).rejects.toThrow('the second')
    await sendAll(ends.a, [pattern(100, 3)])
    expect(slow?.copy()).toEqual(pattern(100, 1))
    go()
    await expect.poll(() => slow?.isReleased).toBe(true)
  })

  it('an observable that is left gives its message back at once, and the next may take in its place', async () => {
    await using ends = await pair(uri())
    let seen: RingMessage | undefined
    let again: Subscription | undefined
    const first = ends.b.consumeViews((message) => {
      seen = message
      return NEVER
    })
    const subscription = first.subscribe()
    await sendAll(ends.a, [pattern(10, 1)])
    await expect.poll(() => seen?.isReleased).toBe(false)
    subscription.unsubscribe()
    expect(seen?.isReleased).toBe(true)
    const second = ends.b.consume(() => {
      throw new Error('mine')
    })
    const taken = new Promise<Uint8Array>((resolve) => {
      second.subscribe({
        error: () => {
          again = ends.b.messages.subscribe((message) => resolve(message.copy()))
        },
      })
    })
    await sendAll(ends.a, [pattern(10, 2), pattern(10, 3)])
    expect(await taken).toEqual(pattern(10, 3))
    again?.unsubscribe()
  })

  it('closing in good order needs nobody to take what comes meanwhile', async () => {
    await using ends = await pair(uri(), { capacity: 4096 })
    const sent = Array.from({ length: 30 }, (_, i) => ends.a.transmit(pattern(900, i)))
    // A wait for the other end is aborted after 5 s, and is not an orderly end.
    await ends.b.close({ timeout: HANG_MS })
    await Promise.all(sent)
    expect(await ends.a.closed).toBeUndefined()
    expect(await ends.b.closed).toBeUndefined()
  })

  it('a claim that is under way when the peer closes stops nothing', async () => {
    await using ends = await pair(uri())
    ends.a.claim(100)
    await ends.b.close()
    expect(await ends.b.closed).toBeUndefined()
    expect(await ends.a.closed).toBeUndefined()
    expect(() => ends.a.commit()).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
  })

  it('a second close has a timeout of its own', async () => {
    await using ends = await pair(uri())
    ends.b.handle(() => new Promise(() => {}))
    const timeout = Number.POSITIVE_INFINITY
    const asked = ends.a.request(new Uint8Array(1), { timeout })
    asked.catch(() => {})
    // Nothing but the second one's would end it.
    const first = ends.a.close({ timeout })
    await ends.a.close({ timeout: 50 })
    await first
    await expect(asked).rejects.toMatchObject({ code: 'ECONNRESET' })
  })

  it('a timeout is a time', async () => {
    await using ends = await pair(uri())
    ends.b.handle((request) => request.copy())
    for (const timeout of [Number.NaN, 0, -1, 2 ** 31])
      await expect(ends.a.request(new Uint8Array(1), { timeout })).rejects.toEqual(UsageError)
    expect(await ends.a.request(new Uint8Array(1), { timeout: Number.POSITIVE_INFINITY })).toHaveLength(1)
    await expect(ends.a.close({ timeout: Number.NaN })).rejects.toEqual(UsageError)
    await ends.a.close({ timeout: Number.POSITIVE_INFINITY })
    expect(await ends.a.closed).toBeUndefined()
  })

  it('a length that wraps is too long', async () => {
    await using ends = await pair(uri())
    for (const length of [2 ** 32, 2 ** 32 + 5, 2 ** 40])
      expect(() => ends.a.claim(length)).toThrow(expect.objectContaining({ code: 'EMSGSIZE' }))
    for (const length of [-1, 0.5, Number.NaN]) expect(() => ends.a.claim(length)).toThrow(UsageError)
    expect(ends.a.claim(10)).toHaveLength(10)
  })

  it('draining posts what was sent in the same turn', async () => {
    const { context } = await device(uri())
    using poller = new Poller(context, { mode: 'caller' })
    const peer = await startPeer('echo', { uri: uri() })
    try {
      await using connection = await RingConnection.connect(peer.uri, { poller })
      connection.send(pattern(20, 1))
      const deadline = performance.now() + HANG_MS
      let heard = 0
      while (heard === 0 && performance.now() < deadline)
        heard += connection.drain((message) => expect(message.copy()).toEqual(pattern(20, 1)))
      expect(heard).toBe(1)
      await connection.close({ drain: false })
    } finally {
      await peer.stop()
    }
  })

  it('a callback of drain cannot take messages in another way', async () => {
    await using ends = await pair(uri())
    const { a, b } = ends
    await sendAll(a, [pattern(8, 1), pattern(8, 2), pattern(8, 3)])
    let tried = 0
    const seen: number[] = []
    await expect
      .poll(() => {
        b.drain((message) => {
          seen.push(message.copy()[0] as number)
          expect(() => b.drain(() => {})).toThrow(UsageError)
          const failures: unknown[] = []
          b.messages.subscribe({ error: (failure) => failures.push(failure) })
          expect(failures).toEqual([UsageError])
          tried++
        })
        return tried
      })
      .toBe(3)
    expect(seen).toEqual([1, 2, 3].map((seed) => pattern(8, seed)[0]))
  })

  it.each(['caller', 'guarded', 'adaptive'] as const)(
    'a full board does not stop what waits behind it, poller %s',
    async (mode) => {
      const { context } = await device(uri())
      using poller = new Poller(context, { mode, descriptors: 64 })
      await using ends = await pair(uri(), { poller, heartbeat: 0 })
      const sent = Array.from({ length: 2_000 }, (_, i) => pattern(8, i))
      await sendAll(ends.a, sent)
      const seen: Uint8Array[] = []
      await expect.poll(() => ends.b.drain((message) => seen.push(message.copy()), 64)).toBeGreaterThan(0)
      // Draining has ended: the event loop brings the rest.
      const rest = lastValueFrom(
        ends.b.consume((m) => [m.copy()]).pipe(take(sent.length - seen.length), toArray()),
      )
      expect(differing([...seen, ...(await rest)], sent)).toEqual([])
      await ends[Symbol.asyncDispose]()
    },
  )
})

/** The device behind an address. */
async function device(uri: string) {
  await using ends = await pair(uri)
  return { context: ends.a.context }
}
