// Requests do not hold the ring: however many are outstanding and however slow, what comes behind them passes.
import { describe, expect, it, onTestFinished } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { RingConnection } from '../../src/index.js'
import { requestAllowance, requestCost } from '../../src/requests/allowance.js'
import { outstanding } from '../helpers/outstanding.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { differing, HANG_MS, pattern, sendAll, startPeer } from '../helpers/processes.js'
import { heapBytes } from '../helpers/resources.js'

const KIB = 1024
const SEED = 20_261_126

describe.each(PROVIDERS)('over %s', (_, uri) => {
  it(
    'calls that call back, 1,000 deep, with more bytes than both rings',
    async () => {
      const { a, b } = await pairOfTest(uri(), { capacity: 64 * KIB }, { capacity: 64 * KIB })
      const LENGTH = 4 * KIB
      const call = (connection: RingConnection, depth: number) => {
        const bytes = pattern(LENGTH, depth)
        new DataView(bytes.buffer).setUint32(0, depth)
        return connection.request(bytes, { timeout: HANG_MS })
      }
      for (const end of [a, b])
        end.handle(async ({ data }) => {
          const depth = new DataView(data.buffer, data.byteOffset).getUint32(0)
          const deeper = depth === 0 ? new Uint8Array(4) : await call(end, depth - 1)
          const count = new Uint8Array(4)
          new DataView(count.buffer).setUint32(0, new DataView(deeper.buffer).getUint32(0) + 1)
          return count
        })
      const answer = await call(a, 999)
      expect(new DataView(answer.buffer).getUint32(0)).toBe(1000)
    },
    HANG_MS,
  )

  it(
    'many outstanding both ways at once, with calls back and slow ones: only the slow time out',
    async () => {
      const ends = await pairOfTest(uri())
      const count = effort(10_000)
      const { right, timedOut, slow, wrong } = await outstanding(ends, count, SEED)
      expect(wrong).toEqual([])
      expect(slow).toBeGreaterThan(0)
      expect({ timedOut, right }).toEqual({ timedOut: slow, right: 2 * count - slow })
      await expect.poll(() => [ends.a, ends.b].map((one) => one.statistics().requestMemory)).toEqual([0, 0])
      expect(await ends.a.request(new Uint8Array(16))).toHaveLength(16)
    },
    HANG_MS,
  )

  it(
    'the memory of requests that are not answered stays within the allowance',
    async () => {
      const peer = await startPeer('asks', { uri: uri() })
      onTestFinished(() => peer.stop())
      const connection = await RingConnection.connect(peer.uri)
      onTestFinished(() => connection.close({ drain: false }))
      const limit = requestAllowance(2 ** 20)
      const before = heapBytes()
      const gate: (() => void)[] = []
      connection.handle(async ({ data }) => {
        await new Promise<void>((resolve) => gate.push(resolve))
        return data
      })
      connection.send(new Uint8Array())
      const full = limit - requestCost(16)
      await expect
        .poll(() => connection.statistics().requestMemory, { timeout: HANG_MS })
        .toBeGreaterThan(full)
      expect(connection.statistics().requestMemory).toBeLessThanOrEqual(limit)
      // This test's own records, and the rest.
      expect(heapBytes() - before - gate.length * 128).toBeLessThan(limit + 2 ** 23)
    },
    HANG_MS,
  )

  it.each(['handle', 'handleViews'] as const)(
    'a slow call holds up nothing that comes behind it: %s',
    async (way) => {
      const { a, b } = await pairOfTest(uri(), { capacity: 16 * KIB }, { capacity: 16 * KIB })
      let answerSlow!: (bytes: Uint8Array) => void
      const slowly = new Promise<Uint8Array>((resolve) => {
        answerSlow = resolve
      })
      const [SLOW, QUICK] = [1, 2]
      b[way](({ immediate, data }) => (immediate === SLOW ? slowly : data.slice()))
      const order: string[] = []
      const got: Uint8Array[] = []
      b.messages.subscribe((message) => got.push(message.copy()))
      const slow = a.request(pattern(KIB, 0), { immediate: SLOW, timeout: HANG_MS })
      const answered = slow.then(() => order.push('slow'))
      // Four rings of messages, and as many of requests.
      const messages = Array.from({ length: 64 }, (_, i) => pattern(KIB, i))
      await sendAll(a, messages)
      for (const message of messages)
        expect(await a.request(message, { immediate: QUICK, timeout: HANG_MS })).toEqual(message)
      await expect.poll(() => got.length).toBe(messages.length)
      order.push('all others')
      answerSlow(new Uint8Array())
      await answered
      expect(order).toEqual(['all others', 'slow'])
      expect(differing(got, messages)).toEqual([])
    },
    HANG_MS,
  )

  it(
    'beyond the allowance requests wait at who asks, and answers and messages pass',
    async () => {
      const small = { capacity: 16 * KIB }
      const { a, b } = await pairOfTest(uri(), small, small)
      const limit = requestAllowance(small.capacity)
      let open!: () => void
      const opened = new Promise<void>((resolve) => {
        open = resolve
      })
      const served: number[] = []
      let most = 0
      b.handle(async ({ immediate, data }) => {
        served.push(immediate)
        most = Math.max(most, b.statistics().requestMemory)
        await opened
        return data
      })
      a.handle(({ data }) => data)
      const heard: number[] = []
      b.messages.subscribe(({ immediate }) => heard.push(immediate))
      const fits = Math.floor(limit / requestCost(KIB))
      const count = 3 * fits
      const asked = Array.from({ length: count }, (_, i) =>
        a.request(pattern(KIB, i), { immediate: i, timeout: HANG_MS }),
      )
      await expect.poll(() => served.length).toBe(fits)
      // The other way, and messages: as much as four rings.
      for (let i = 0; i < 64; i++) {
        expect(await b.request(pattern(KIB, i), { timeout: HANG_MS })).toEqual(pattern(KIB, i))
        while (!a.send(pattern(KIB, i), i)) await a.writable()
      }
      await expect.poll(() => heard.length).toBe(64)
      expect(served).toHaveLength(fits)
      open()
      const answers = await Promise.all(asked)
      expect(
        differing(
          answers,
          answers.map((_, i) => pattern(KIB, i)),
        ),
      ).toEqual([])
      expect(served).toEqual(served.map((_, i) => i))
      expect(most).toBeLessThanOrEqual(limit)
      expect(b.statistics().requestMemory).toBe(0)
    },
    HANG_MS,
  )
})
