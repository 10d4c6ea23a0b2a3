import type { Context } from '@rdmakit/verbs'
import fc from 'fast-check'
import { afterAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { Poller, type PollerMode, type RingConnection, type RingMessage } from '../../src/index.js'
import { PROVIDERS, pair } from '../helpers/pair.js'
import { HANG_MS } from '../helpers/processes.js'

// Property: whatever the sizes, the ways of sending and of receiving, the speeds of both ends, the ring's
// capacity, the batches and the pollers: every message arrives once, in order, intact, with its immediate.

const RUNS = effort(30)
const modes: readonly PollerMode[] = ['poll', 'event', 'adaptive', 'caller', 'guarded']

const CONSUMERS = [
  'messages',
  'views',
  'retain',
  'batches',
  'viewBatches',
  'consume',
  'consumeViews',
  'drain',
] as const

interface Plan {
  readonly log2Capacity: number
  readonly receiveDepth: number
  readonly sendDepth: number
  readonly batchFrames: number
  readonly modes: readonly [number, number]
  /** for each message: its part of the longest, in thousandths, and how it is sent */
  readonly messages: readonly { size: number; by: 'send' | 'claim' | 'shorten' | 'batch'; pause: boolean }[]
  readonly consumer: (typeof CONSUMERS)[number]
  readonly slow: number
}

const plans: fc.Arbitrary<Plan> = fc.record({
  log2Capacity: fc.integer({ min: 12, max: 18 }),
  receiveDepth: fc.integer({ min: 8, max: 64 }),
  sendDepth: fc.integer({ min: 16, max: 64 }),
  batchFrames: fc.integer({ min: 1, max: 40 }),
  modes: fc.tuple(fc.nat(4), fc.nat(4)),
  messages: fc.array(
    fc.record({
      size: fc.oneof(
        { weight: 4, arbitrary: fc.nat(60) },
        { weight: 2, arbitrary: fc.nat(1000) },
        fc.constant(1000),
      ),
      by: fc.constantFrom('send', 'claim', 'shorten', 'batch'),
      pause: fc.boolean(),
    }),
    { minLength: 1, maxLength: 400 },
  ),
  consumer: fc.constantFrom(...CONSUMERS),
  slow: fc.nat(5),
})

/** Bytes that only message `i` has. */
function fill(bytes: Uint8Array, i: number): void {
  for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 31 + i * 7 + (at >> 8)) & 0xff
}

function filled(length: number, i: number): Uint8Array {
  const bytes = new Uint8Array(length)
  fill(bytes, i)
  return bytes
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve))

async function send(a: RingConnection, plan: Plan): Promise<void> {
  for (const [i, { size, by, pause }] of plan.messages.entries()) {
    const length = Math.floor((a.maxMessageLength * size) / 1000)
    for (;;) {
      if (by === 'send') {
        if (a.send(filled(length, i), i)) break
      } else if (by === 'batch') {
        // A batch carries no immediates: the receiver knows these by their way.
        if (a.sendBatch([filled(length, i)]) === 1) break
      } else {
        const more = by === 'shorten' ? Math.min(100, a.maxMessageLength - length) : 0
        const room = a.claim(length + more)
        if (room !== undefined) {
          fill(room.subarray(0, length), i)
          if (pause) await turn()
          a.commit(i, length)
          break
        }
      }
      await a.writable()
    }
    if (pause) await turn()
  }
}

/** Takes `count` messages by one way of receiving, checking each, then resolves. */
async function receive(b: RingConnection, plan: Plan): Promise<void> {
  const { messages, consumer, slow } = plan
  let next = 0
  const check = (data: Uint8Array, immediate: number) => {
    const i = next++
    const planned = messages[i]
    if (planned === undefined) throw new Error(`message ${i} was never sent`)
    const length = Math.floor((b.maxMessageLength * planned.size) / 1000)
    if (Buffer.compare(data, filled(length, i)) !== 0)
      throw new Error(`message ${i} of ${length} bytes is not as it was sent: ${data.length} bytes`)
    expect(immediate).toBe(planned.by === 'batch' ? 0 : i)
  }
  const all = () => next === messages.length
  switch (consumer) {
    case 'messages':
    case 'views':
    case 'retain': {
      const held: RingMessage[] = []
      await new Promise<void>((resolve, reject) => {
        b[consumer === 'messages' ? 'messages' : 'views'].subscribe({
          next: (message) => {
            try {
              check(message.data, message.immediate)
            } catch (failure) {
              reject(failure)
            }
            if (consumer === 'retain') {
              held.push(message.retain())
              // Let go later and out of order, but all of them soon: they may be all that the ring holds.
              setImmediate(() => {
                for (const one of held.splice(0).reverse()) one.release()
              })
            }
            if (all()) resolve()
          },
          complete: () => reject(new Error(`it ended at ${next}`)),
        })
      })
      for (const one of held) one.release()
      return
    }
    case 'batches':
    case 'viewBatches':
      for await (const batch of b[consumer]({ limit: slow + 1 })) {
        for (const message of batch) check(message.data, message.immediate)
        if (all()) return
        if (slow > 2) await turn()
      }
      throw new Error(`it ended at ${next}`)
    case 'consume':
    case 'consumeViews':
      await new Promise<void>((resolve, reject) => {
        b[consumer](async (message) => {
          check(message.data, message.immediate)
          const before = message.copy()
          for (let i = 0; i < slow; i++) await turn()
          expect(Buffer.compare(message.data, before)).toBe(0)
        }, slow + 1).subscribe({
          next: () => all() && resolve(),
          error: reject,
          complete: () => reject(new Error(`it ended at ${next}`)),
        })
      })
      return
    case 'drain': {
      const deadline = performance.now() + HANG_MS
      while (!all()) {
        if (performance.now() > deadline) throw new Error(`stuck at ${next} of ${messages.length}`)
        b.drain((message) => check(message.data, message.immediate), slow * 10 + 1)
        await turn()
      }
    }
  }
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  const pollers: Poller[] = []
  afterAll(() => {
    for (const poller of pollers) poller?.close()
  })

  const poller = (context: Context, mode: number, side: number) => {
    const at = mode * 2 + side
    pollers[at] ??= new Poller(context, { mode: modes[mode] as PollerMode })
    return pollers[at]
  }

  it('every message arrives once, in order, intact', async () => {
    const probe = await pair(uri())
    const { context } = probe.a
    await probe[Symbol.asyncDispose]()
    await fc.assert(
      fc.asyncProperty(plans, async (plan) => {
        const { log2Capacity, receiveDepth, sendDepth, batchFrames } = plan
        const options = { capacity: 2 ** log2Capacity, receiveDepth, sendDepth, batchFrames }
        await using ends = await pair(
          uri(),
          { ...options, poller: poller(context, plan.modes[0], 0) },
          { ...options, poller: poller(context, plan.modes[1], 1) },
        )
        let stuck: NodeJS.Timeout | undefined
        const late = new Promise<never>((_, reject) => {
          stuck = setTimeout(() => reject(new Error('it goes no further')), HANG_MS)
        })
        const done = Promise.all([receive(ends.b, plan), send(ends.a, plan)])
        await Promise.race([done, late])
        clearTimeout(stuck)
      }),
      { numRuns: RUNS },
    )
  }, 180_000)
})
