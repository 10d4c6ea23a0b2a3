// Long payloads leave from where they are: they are the sender's again at once, and those that may change under its hands
// are copied. Costs a second.

import { openDevice } from '@rdmakit/verbs'
import { mayChange } from '@rdmakit/verbs/internal'
import { describe, expect, it, onTestFinished } from 'vitest'
import { SEND, TYPE } from '../../src/native.js'
import { Outbox } from '../../src/sending/outbox.js'
import { StagingWriter } from '../../src/sending/staging-writer.js'
import { Windows } from '../../src/setup/ring-layout.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { differing, pattern } from '../helpers/processes.js'

const MESSAGES = 200
const LEAST = 32_768
const GONE = 0xee
const SHORT = new Uint8Array(1)

describe.each(PROVIDERS)('over %s', (_, uri) => {
  it.each([
    ['messages of 32 KiB and more', LEAST, 2 ** 20],
    ['messages of several segments', 300_000, 2 ** 20],
    // More than the peer has receives for: batches wait for credit with their payloads.
    ['messages of a large ring', LEAST, 2 ** 23],
  ])('%s arrive as they were sent', async (_what, length, capacity) => {
    const { a, b } = await pairOfTest(uri(), { capacity }, { capacity })
    const messages = Array.from({ length: MESSAGES }, (_, i) => pattern(length + (i % 50), i))
    const got: Uint8Array[] = []
    const all = new Promise<void>((resolve) => {
      b.messages.subscribe(({ data }) => {
        if (data.length > 1 && got.push(data) === MESSAGES) resolve()
      })
    })
    const bytes = new Uint8Array(length + 50)
    // At once, so that nothing completes meanwhile.
    for (const [i, message] of messages.entries()) {
      // It is in the long one's batch.
      if (i % 3 === 0) while (!a.send(SHORT)) await a.writable()
      bytes.set(message)
      while (!a.send(bytes.subarray(0, message.length))) await a.writable()
      bytes.fill(GONE)
    }
    await all
    expect(differing(got, messages)).toEqual([])
  })

  it('leaves no copy in the staging region', async () => {
    const { a, b } = await pairOfTest(uri())
    b.handle(() => SHORT)
    const message = pattern(LEAST, 1)
    // A slow machine's socket may not take all of one at once.
    for (let i = 0; i < 10; i++) await a.request(message)
    const places = Array.from({ length: 10 }, (_, i) => i * (LEAST + 16) + 16)
    const copied = places.filter((at) => a.outgoing.subarray(at, at + LEAST).some((byte) => byte !== 0))
    expect(copied.length).toBeLessThan(10)
  })

  it('requests and answers too, and messages in parts', async () => {
    const { a, b } = await pairOfTest(uri())
    b.handle(({ data }) => data)
    const messages = [LEAST, 200_000, 1_000_000].map(pattern)
    const answers = await Promise.all(messages.map((message) => a.request(message)))
    expect(differing(answers, messages)).toEqual([])
  })

  it('what a peer may write to is known as such, and is forwarded', async () => {
    const { a, b } = await pairOfTest(uri())
    const echoed = new Promise<Uint8Array>((resolve) => {
      a.messages.subscribe(({ data }) => resolve(data))
    })
    b.views.subscribe((view) => {
      expect(mayChange(view.data.buffer)).toBe(true)
      b.send(view.data)
    })
    const message = pattern(100_000, 1)
    expect(mayChange(message.buffer)).toBe(false)
    a.send(message)
    expect(differing([await echoed], [message])).toEqual([])
    expect(mayChange(a.outgoing.buffer)).toBe(true)
  })

  it('shared memory can be sent', async () => {
    const { a, b } = await pairOfTest(uri())
    const arrived = new Promise<Uint8Array>((resolve) => {
      b.messages.subscribe(({ data }) => resolve(data))
    })
    const message = new Uint8Array(new SharedArrayBuffer(LEAST))
    message.set(pattern(LEAST, 3))
    a.send(message)
    expect(differing([await arrived], [pattern(LEAST, 3)])).toEqual([])
  })
})

describe('a long payload', () => {
  /** What native code is given: the batches that it posts, and the payload that is lent with each. */
  function outbox(result: number) {
    const UNITS = 2 ** 16
    const words = new Int32Array(4)
    const lent: [number, Uint8Array | undefined][] = []
    let posted = 0
    const post = (next: number, bytes?: Uint8Array) => {
      lent.push([next - posted, bytes])
      if (result === SEND.done) posted = next
      words.set([next, UNITS, posted])
      return result
    }
    const port = {
      reserve(next: number) {
        words.set([next, UNITS, posted])
        return SEND.done
      },
      flush: (next: number) => post(next),
      flushLent: (next: number, _: boolean, __: number, bytes: Uint8Array) => post(next, bytes),
    }
    const stagingWriter = new StagingWriter(
      4,
      new ArrayBuffer(2 ** 20),
      new Windows(20, 1),
      words,
      new Int32Array([1]),
      port,
      { frames: 128, bytes: LEAST },
    )
    const poller = { scheduleFlush() {} }
    const link = { stagingWriter, maxMessageLength: 2 ** 18, longestMessage: 2 ** 18, poller }
    const made = new Outbox({ id: { description: 'link' }, drained: () => true, ...link }, () => {
      throw new Error('the queue pair accepts no more work requests')
    })
    return { made, lent, staged: stagingWriter.bytes }
  }
  const HEADER = 8

  it('is lent where it fills a batch, and shorter ones are copied', () => {
    const { made, lent, staged } = outbox(SEND.done)
    const long = pattern(LEAST, 1)
    expect(made.send(TYPE.data, 0, 0, long)).toBe(true)
    expect(lent).toEqual([[LEAST / 16 + 1, long]])
    expect(staged.subarray(HEADER, HEADER + LEAST).every((byte) => byte === 0)).toBe(true)
    const short = pattern(LEAST - 1, 2)
    const at = (LEAST / 16 + 1) * 16 + HEADER
    expect(made.send(TYPE.data, 0, 0, short)).toBe(true)
    expect(lent[1]).toEqual([LEAST / 16 + 1, undefined])
    expect(staged.slice(at, at + LEAST - 1)).toEqual(short)
  })

  const registered = () => {
    const memory = new ArrayBuffer(LEAST)
    const domain = openDevice('iwarp0', 'iwarp').allocateProtectionDomain()
    onTestFinished(() => domain.close())
    const region = domain.registerMemoryRegion(memory)
    onTestFinished(() => region.close())
    return memory
  }
  it.each([
    ['by another thread', () => new SharedArrayBuffer(LEAST)],
    ['by a device', registered],
  ])('is copied where it may change %s', (_, memory) => {
    const { made, lent, staged } = outbox(SEND.done)
    const long = new Uint8Array(memory()).fill(7)
    expect(made.send(TYPE.data, 0, 0, long)).toBe(true)
    expect(lent).toEqual([[LEAST / 16 + 1, undefined]])
    expect(staged.slice(HEADER, HEADER + LEAST)).toEqual(new Uint8Array(LEAST).fill(7))
  })

  it('is copied while batches wait for credit', () => {
    const { made, lent, staged } = outbox(SEND.full)
    const long = pattern(LEAST, 1)
    expect(made.send(TYPE.data, 0, 0, long)).toBe(true)
    expect(lent).toHaveLength(1)
    expect(made.send(TYPE.data, 0, 0, long)).toBe(true)
    expect(lent).toHaveLength(1)
    const at = (LEAST / 16 + 1) * 16 + HEADER
    expect(staged.slice(at, at + LEAST)).toEqual(long)
  })
})
