// The context that a handler gets with the request, and how long the request is readable.
import { deferred } from '@rdmakit/verbs/internal'
import { expect, it } from 'vitest'
import type { RequestContext, RingConnection, RingMessage } from '../../src/index.js'
import { pairOfTest } from '../helpers/pair.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { listenUri } from '../helpers/uris.js'

const RING = { capacity: 4096 }
const pair = () => pairOfTest(listenUri('shm'), RING, RING)

/** Sends so much through the ring of `b` that each of its bytes is another one. */
async function overwrite(a: RingConnection): Promise<void> {
  for (let i = 0; i < 16; i++) await a.request(pattern(1000, 100 + i), { immediate: 1, timeout: HANG_MS })
}

it('a request is in memory of its own: good for as long as anybody has it', async () => {
  const { a, b } = await pair()
  const kept: RingMessage[] = []
  b.handle(async (request) => {
    await new Promise((resolve) => setImmediate(resolve))
    if (request.immediate === 0) kept.push(request)
    return request.data
  })
  expect(await a.request(pattern(1000, 7))).toEqual(pattern(1000, 7))
  await overwrite(a)
  expect(kept[0]?.data).toEqual(pattern(1000, 7))
})

it('a view is good until the handler returns, or until it is released', async () => {
  const { a, b } = await pair()
  const [first, second] = [deferred<void>(), deferred<void>()]
  const seen: RingMessage[] = []
  b.handleViews(async (request) => {
    if (request.immediate === 1) return request.copy()
    seen.push(request)
    const retained = seen.length === 2
    if (retained) request.retain()
    const early = request.copy()
    await (retained ? second : first).promise
    if (!retained) return early
    const late = request.copy()
    request.release()
    return late
  })
  const gone = a.request(pattern(1000, 1), { timeout: HANG_MS })
  await expect.poll(() => seen.length).toBe(1)
  expect(seen[0]?.isReleased).toBe(true)
  expect(() => seen[0]?.data).toThrow(/released/)
  await overwrite(a)
  const held = a.request(pattern(1000, 2), { timeout: HANG_MS })
  await expect.poll(() => seen.length).toBe(2)
  expect(seen[1]?.isReleased).toBe(false)
  first.resolve()
  second.resolve()
  expect(await gone).toEqual(pattern(1000, 1))
  expect(await held).toEqual(pattern(1000, 2))
  expect(seen[1]?.isReleased).toBe(true)
})

it.each([false, true])('a view of the request is an answer, with debug: %s', async (debug) => {
  const { a, b } = await pairOfTest(listenUri('shm'), { ...RING, debug }, RING)
  const seen: RingMessage[] = []
  b.handleViews((request) => {
    seen.push(request)
    return request.data.subarray(1)
  })
  for (let i = 0; i < 8; i++)
    expect(await a.request(pattern(1000, i), { timeout: HANG_MS })).toEqual(pattern(1000, i).subarray(1))
  expect(seen.every(({ isReleased }) => isReleased)).toBe(true)
})

it.each(['handle', 'handleViews'] as const)(
  '%s lets go of the request of a handler that throws',
  async (way) => {
    const { a, b } = await pair()
    const seen: RingMessage[] = []
    b[way]((request) => {
      seen.push(request)
      throw new Error('no')
    })
    // Twice the ring: it would be full if they were held.
    for (let i = 0; i < 8; i++)
      await expect(a.request(pattern(1000, i), { timeout: HANG_MS })).rejects.toThrow('no')
    if (way === 'handleViews') expect(seen.every(({ isReleased }) => isReleased)).toBe(true)
  },
)

it('it is told by which connection the request came, and when nobody waits for the answer any more', async () => {
  const { a, b } = await pair()
  const asked = deferred<RequestContext>()
  b.handle((request, context) => {
    if (request.length === 0) return new Uint8Array()
    // Looked at later, too.
    if (request.length === 2) void context.signal
    asked.resolve(context)
    return new Promise(() => {})
  })
  await a.request(new Uint8Array())
  const answer = a.request(new Uint8Array(2), { timeout: HANG_MS })
  answer.catch(() => {})
  const { connection, signal } = await asked.promise
  expect(connection).toBe(b)
  expect(signal.aborted).toBe(false)
  await a.close({ drain: false })
  await b.closed
  expect(signal.aborted).toBe(true)
  expect(signal.reason).toMatchObject({ name: 'VerbsError' })
})

it('a signal that is first looked at after the end is aborted', async () => {
  const { a, b } = await pair()
  const asked = deferred<RequestContext>()
  b.handle((_, context) => {
    asked.resolve(context)
    return new Promise(() => {})
  })
  a.request(new Uint8Array(1)).catch(() => {})
  const context = await asked.promise
  await a.close({ drain: false })
  await b.closed
  expect(context.signal.aborted).toBe(true)
})

it('none begins after the end, also not for a request in parts that has waited for memory', async () => {
  // One of two messages has room in memory, and the other waits in the ring.
  const { a, b } = await pairOfTest(listenUri('shm'), { capacity: 2 ** 18, maxTransferMemory: 3 * 2 ** 16 })
  let begun = 0
  b.handle((request) => {
    begun++
    return request.data
  })
  await a.transmit(pattern(150_000, 1), { timeout: 50 }).catch(() => {})
  const answer = a.request(pattern(150_000, 2), { timeout: HANG_MS }).catch(({ code }) => code)
  await expect.poll(() => b.statistics().framesReceived).toBe(4)
  expect(b.statistics()).toMatchObject({ transfersInFlight: 1, requestsRunning: 0 })
  await a.close({ drain: false })
  await b.closed
  expect(await answer).toMatch(/^E/)
  expect(b.statistics()).toMatchObject({ transfersInFlight: 0, requestsRunning: 0, requestMemory: 0 })
  expect(begun).toBe(0)
})

it('a hundred handlers that listen to their signals make Node warn of nothing', async () => {
  const { a, b } = await pair()
  const warnings: Error[] = []
  const warned = (warning: Error) => warnings.push(warning)
  process.on('warning', warned)
  let begun = 0
  const door = deferred<void>()
  b.handle(async (_, { signal }) => {
    signal.addEventListener('abort', () => {})
    begun++
    await door.promise
    return new Uint8Array()
  })
  const asked = Array.from({ length: 100 }, () => a.request(new Uint8Array(), { timeout: HANG_MS }))
  await expect.poll(() => begun).toBe(100)
  door.resolve()
  await Promise.all(asked)
  process.off('warning', warned)
  expect(warnings).toEqual([])
})
