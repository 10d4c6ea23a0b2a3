// Memory of a connection that the program got is not reused after the end of the connection, as long as the program
// or its I/O can reach it.
import { keptMemory } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { LENGTH, READS, type SlowIo, WRITES } from '../../../../test/slow-io.js'
import type { RingMessage } from '../../src/index.js'
import { type Pair, PROVIDERS, pair, pairOfTest } from '../helpers/pair.js'
import { next, READ_FROM } from '../helpers/transfers.js'

/** Half of a ring, less what a frame takes; more than I/O takes at once. */
const CLAIM = LENGTH - 64

const filled = (byte: number) => new Uint8Array(CLAIM).fill(byte)
const same = (one: Uint8Array, other: Uint8Array) => Buffer.compare(one, other) === 0

const claimed = ({ a }: Pair) => a.claim(CLAIM) as Uint8Array
const allocated = async ({ a }: Pair) => new Uint8Array((await a.allocate(CLAIM)).buffer, 0, CLAIM)
/** A message that was read from its sender's memory. */
async function accepted({ a, b }: Pair): Promise<Uint8Array> {
  const offered = next(b.offers)
  // It is not told that it was taken, for the connection ends before.
  void a.transmit(filled(0)).catch(() => {})
  return (await (await offered).accept()).data
}

/** A view of the ring, of a message that is held until after the end. */
async function viewed({ a, b }: Pair): Promise<Uint8Array> {
  const message = next<RingMessage>({ subscribe: (to) => b.views.subscribe((one) => to(one.retain())) })
  a.send(filled(0))
  const held = await message
  void b.closed.then(() => held.release())
  return held.data
}

const MEMORY: [string, (ends: Pair) => Uint8Array | Promise<Uint8Array>][] = [
  ['claimed', claimed],
  ['allocated', allocated],
  ['accepted', accepted],
  ['viewed in the ring', viewed],
]

describe.each(PROVIDERS)('over %s, what was', (_, uri) => {
  it('not given is unmapped at once', async () => {
    const before = keptMemory()
    const ends = await pair(uri())
    const got = next<Uint8Array>({ subscribe: (to) => ends.b.messages.subscribe((one) => to(one.data)) })
    ends.a.send(filled(3))
    expect(same(await got, filled(3))).toBe(true)
    await ends.a.close()
    await ends[Symbol.asyncDispose]()
    // Memory of other tests may be collected meanwhile.
    expect(keptMemory().bytes).toBeLessThanOrEqual(before.bytes)
  })
  describe.each(MEMORY)('%s', (_, given) => {
    /** A connection ends under I/O and others come. @returns what the I/O took, and what is in others' memory then */
    async function endsUnder(begin: SlowIo): Promise<{ taken: Uint8Array; others: Uint8Array[] }> {
      const ends = await pair(uri(), {}, READ_FROM)
      const memory = await given(ends)
      memory.fill(1)
      const goOn = await begin(memory)
      await ends[Symbol.asyncDispose]()
      const others: Uint8Array[] = []
      for (let i = 0; i < 2; i++) {
        const pairNext = await pairOfTest(uri())
        others.push(claimed(pairNext), await allocated(pairNext))
      }
      for (const other of others) other.fill(2)
      return { taken: await goOn(), others }
    }

    it.each(READS)('is not written over in others’ connections by %s', async (_, begin) => {
      const { others } = await endsUnder(begin)
      for (const other of others) expect(same(other, filled(2))).toBe(true)
    })
    it.each(WRITES)('is what %s takes of it', async (_, begin) => {
      const { taken } = await endsUnder(begin)
      expect(same(taken, filled(1))).toBe(true)
    })
  })
})
