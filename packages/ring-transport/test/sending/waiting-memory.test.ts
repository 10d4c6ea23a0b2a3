// Copies of bytes that wait for room are made in memory that has served before. Costs half a second.
import { describe, expect, it } from 'vitest'
import { WaitingMemory } from '../../src/sending/waiting-memory.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { differing, pattern } from '../helpers/processes.js'

const MANY = 32_768

describe('memory for bytes that wait', () => {
  it.each([0, 1, 511, 512, 513, MANY, MANY + 1, 2 ** 20, 2 ** 20 + 1])('has a copy of %i bytes', (length) => {
    const memory = new WaitingMemory()
    for (let again = 0; again < 2; again++) {
      const bytes = pattern(length, again)
      const { copy, memory: owned } = memory.copy(bytes)
      expect(Buffer.compare(copy, pattern(length, again))).toBe(0)
      bytes.fill(0)
      expect(Buffer.compare(copy, pattern(length, again))).toBe(0)
      if (owned !== undefined) memory.giveBack(owned)
    }
  })

  it('serves again for as many bytes and for fewer, one copy at a time', () => {
    const memory = new WaitingMemory()
    const one = memory.copy(new Uint8Array(MANY))
    const other = memory.copy(new Uint8Array(MANY))
    expect(other.copy.buffer).not.toBe(one.copy.buffer)
    memory.giveBack(one.memory as Uint8Array)
    const next = memory.copy(new Uint8Array(MANY - 100))
    expect(next.copy.buffer).toBe(one.copy.buffer)
    const last = memory.copy(new Uint8Array(MANY))
    expect([next.copy.buffer, other.copy.buffer]).not.toContain(last.copy.buffer)
  })

  it('takes a quarter more than it has to, at most', () => {
    const memory = new WaitingMemory()
    for (let length = 512; length <= 2 ** 20; length += Math.ceil(length / 50)) {
      const { memory: owned } = memory.copy(new Uint8Array(length))
      expect(owned?.length).toBeGreaterThanOrEqual(length)
      expect(owned?.length).toBeLessThanOrEqual(1.25 * length)
    }
  })

  it('keeps 4 MiB at most', () => {
    const memory = new WaitingMemory()
    const copies = (count: number) => Array.from({ length: count }, () => memory.copy(new Uint8Array(MANY)))
    const first = copies(200)
    for (const { memory: owned } of first) memory.giveBack(owned as Uint8Array)
    const buffers = new Set(first.map(({ copy }) => copy.buffer))
    const again = copies(200).filter(({ copy }) => buffers.has(copy.buffer))
    expect(again).toHaveLength((4 * 2 ** 20) / MANY)
  })

  it('does not copy what was taken away', () => {
    const bytes = new Uint8Array(MANY)
    structuredClone(bytes.buffer, { transfer: [bytes.buffer] })
    expect(() => new WaitingMemory().copy(bytes)).toThrow(TypeError)
  })
})

it.each(PROVIDERS)(
  'requests that wait, and their answers, arrive as they were sent over %s',
  async (_, uri) => {
    const { a, b } = await pairOfTest(uri())
    const answer = new Uint8Array(4 * MANY)
    // What a handler gives it may use again at once.
    b.handle(({ data }) => {
      answer.set(data)
      queueMicrotask(() => answer.fill(0xee))
      return answer.subarray(0, data.length)
    })
    const bytes = new Uint8Array(4 * MANY)
    for (let round = 0; round < 10; round++) {
      const messages = Array.from({ length: 64 }, (__, i) =>
        pattern([1000, MANY, 3 * MANY][i % 3] as number, 64 * round + i),
      )
      const asked = messages.map((message) => {
        bytes.set(message)
        const response = a.request(bytes.subarray(0, message.length))
        bytes.fill(0xee)
        return response
      })
      expect(differing(await Promise.all(asked), messages)).toEqual([])
    }
  },
)
