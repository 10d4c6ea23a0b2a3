// Messages, requests and answers that are longer than a frame: their bytes, their place, what becomes of them when they
// are given up, and what they take of memory. Costs two seconds.
import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import type { RingConnection } from '../../src/index.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { MIB } from '../helpers/transfers.js'

const timeout = HANG_MS
/** All goes in parts. */
const PARTS = { rendezvousThreshold: 2 ** 26 }

/** The messages of a connection from now on: their immediates, and those whose bytes are not {@link pattern}'s. */
function collected(connection: RingConnection) {
  const order: number[] = []
  const wrong: number[] = []
  connection.messages.subscribe(({ data, length, immediate }) => {
    order.push(immediate)
    if (Buffer.compare(data, pattern(length, immediate)) !== 0) wrong.push(immediate)
  })
  return { order, wrong }
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  it('requests and answers come whole, beside small ones', async () => {
    const { a, b } = await pairOfTest(uri())
    b.handle(({ data, length, immediate }) => {
      if (Buffer.compare(data, pattern(length, immediate)) !== 0) throw new Error('wrong bytes')
      return pattern(length + 1, immediate + 1)
    })
    const lengths = [3 * MIB, 1, 524_272, 524_273, 100, 2 * MIB, 131_056, MIB]
    const answers = lengths.map(async (length, i) => {
      const answer = await a.request(pattern(length, i), { timeout, immediate: i })
      return Buffer.compare(answer, pattern(length + 1, i + 1))
    })
    expect(await Promise.all(answers)).toEqual(lengths.map(() => 0))
    expect(b.statistics()).toMatchObject({ transfersInFlight: 0, transferMemory: 0, requestMemory: 0 })
  })

  it('the bytes of a request may change once the call has returned', async () => {
    const { a, b } = await pairOfTest(uri(), { capacity: 16_384 })
    b.handle(({ data }) => data)
    const bytes = pattern(MIB, 1)
    const answer = a.request(bytes, { timeout })
    bytes.fill(0)
    expect(Buffer.compare(await answer, pattern(MIB, 1))).toBe(0)
  })

  it('go both ways at a time through rings that hold a fraction of one', async () => {
    const options = { capacity: 4096, ...PARTS }
    const { a, b } = await pairOfTest(uri(), options, options)
    const [atA, atB] = [collected(a), collected(b)]
    const sent = [a, b].flatMap((one) =>
      [1, 2, 3].map((i) => one.transmit(pattern(300_000, i), { immediate: i, timeout })),
    )
    await Promise.all(sent)
    for (const at of [atA, atB]) {
      await expect.poll(() => at.order, { timeout }).toEqual([1, 2, 3])
      expect(at.wrong).toEqual([])
    }
  })

  it.each(['messages', 'views', 'batches', 'consume', 'drain'] as const)(
    'keep their place for %s',
    async (way) => {
      const { a, b } = await pairOfTest(uri(), { capacity: MIB }, PARTS)
      const order: number[] = []
      const took = ({ immediate, length }: { immediate: number; length: number }) => {
        expect(length).toBe(immediate % 3 === 0 ? 600_000 : 20)
        order.push(immediate)
      }
      let over = false
      const draining = async () => {
        while (!over) {
          b.drain(took)
          await new Promise(setImmediate)
        }
      }
      const batching = async () => {
        for await (const { messages } of b.batches()) for (const message of messages) took(message)
      }
      const ways = {
        messages: async () => void b.messages.subscribe(took),
        views: async () => void b.views.subscribe(took),
        consume: async () => void b.consume(async (message) => took(message), 1).subscribe(),
        batches: batching,
        drain: draining,
      }
      const taking = ways[way]()
      for (let i = 0; i < 30; i++) {
        if (i % 3 === 0) await a.transmit(new Uint8Array(600_000), { immediate: i, timeout })
        else while (!a.send(new Uint8Array(20), i)) await a.writable()
      }
      const numbers = Array.from({ length: 30 }, (_, i) => i)
      await expect.poll(() => order, { timeout }).toEqual(numbers)
      over = true
      await a.close()
      await taking
    },
  )

  it('that nobody takes wait in the memory that there is for them, then in the ring', async () => {
    const { a, b } = await pairOfTest(uri(), { maxTransferMemory: 2 * MIB, capacity: MIB }, PARTS)
    const sent = [0, 1, 2, 3, 4].map((i) => a.transmit(pattern(MIB - i, i), { immediate: i, timeout }))
    await Promise.all(sent.slice(0, 2))
    await expect.poll(() => b.statistics().transferMemory).toBe(2 * MIB - 1)
    const at = collected(b)
    await Promise.all(sent)
    await expect.poll(() => at).toEqual({ order: [0, 1, 2, 3, 4], wrong: [] })
    await expect.poll(() => b.statistics()).toMatchObject({ transfersInFlight: 0, transferMemory: 0 })
  })

  it('that are given up before their end do not come, and what is behind them does', async () => {
    const { a, b } = await pairOfTest(uri(), { maxTransferMemory: MIB, capacity: 65_536 }, PARTS)
    const first = a.transmit(pattern(MIB, 1), { immediate: 1, timeout })
    await first
    const abort = new AbortController()
    const second = a.transmit(pattern(MIB, 2), { immediate: 2, timeout, signal: abort.signal })
    const third = a.transmit(pattern(MIB, 3), { immediate: 3, timeout })
    // Its first parts are in the ring by then, which is full.
    await expect.poll(() => b.statistics().transfersInFlight).toBe(1)
    abort.abort(new Error('enough'))
    await expect(second).rejects.toThrow('enough')
    const at = collected(b)
    await third
    await expect.poll(() => at).toEqual({ order: [1, 3], wrong: [] })
  })

  it('whose bytes are taken away on the way say so, and the connection goes on', async () => {
    const { a, b } = await pairOfTest(uri(), { maxTransferMemory: MIB, capacity: 65_536 }, PARTS)
    await a.transmit(pattern(MIB, 1), { immediate: 1, timeout })
    const bytes = pattern(MIB, 2)
    const sent = a.transmit(bytes, { immediate: 2, timeout })
    await expect.poll(() => b.statistics().transfersInFlight).toBe(1)
    structuredClone(bytes.buffer, { transfer: [bytes.buffer as ArrayBuffer] })
    const at = collected(b)
    await expect(sent).rejects.toThrow(UsageError)
    await a.transmit(pattern(MIB, 3), { immediate: 3, timeout })
    await expect.poll(() => at).toEqual({ order: [1, 3], wrong: [] })
  })

  it('in one frame, whose bytes are taken away while they wait for room, do not come as nothing', async () => {
    const { a, b } = await pairOfTest(uri(), { capacity: 4096 })
    while (a.send(new Uint8Array(2000).fill(7), 7)) a.flush()
    const bytes = pattern(1500, 2)
    const sent = a.transmit(bytes, { immediate: 2, timeout })
    const refused = expect(sent).rejects.toThrow(UsageError)
    structuredClone(bytes.buffer, { transfer: [bytes.buffer as ArrayBuffer] })
    const immediates: number[] = []
    b.messages.subscribe(({ immediate }) => immediates.push(immediate))
    await refused
    await a.transmit(pattern(100, 3), { immediate: 3, timeout })
    await expect.poll(() => immediates.filter((one) => one !== 7)).toEqual([3])
  })

  it('that are on their way when their end closes arrive', async () => {
    const { a, b } = await pairOfTest(uri(), { capacity: 16_384 }, PARTS)
    const at = collected(b)
    const sent = a.transmit(pattern(2 * MIB, 1), { immediate: 1, timeout })
    await a.close({ timeout })
    await sent
    await b.closed
    expect(at).toEqual({ order: [1], wrong: [] })
  })

  it.each(['a', 'b'] as const)('end with their connection, which %s breaks', async (end) => {
    const ends = await pairOfTest(uri(), { maxTransferMemory: MIB, capacity: 65_536 }, PARTS)
    const { a, b } = ends
    await a.transmit(pattern(MIB, 1), { immediate: 1, timeout })
    const sent = a.transmit(pattern(MIB, 2), { immediate: 2, timeout })
    const request = b.request(new Uint8Array(3 * MIB), { timeout })
    const settled = Promise.allSettled([sent, request])
    await expect.poll(() => b.statistics().transfersInFlight).toBe(1)
    await ends[end].close({ drain: false })
    expect((await settled).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    await Promise.all([a.closed, b.closed])
    const left = { transfersInFlight: 0, messagesWaiting: end === 'a' ? 1 : 0 }
    expect(b.statistics()).toMatchObject(left)
    if (end === 'a') expect(collected(b)).toEqual({ order: [1], wrong: [] })
  })
})
