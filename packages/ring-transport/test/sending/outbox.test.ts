// Frames that wait for room and those that come meanwhile: room can be there before its event.
import { describe, expect, it } from 'vitest'
import { SEND, TYPE } from '../../src/native.js'
import { Outbox } from '../../src/sending/outbox.js'
import { StagingWriter } from '../../src/sending/staging-writer.js'
import { Windows } from '../../src/setup/ring-layout.js'

const UNIT = 16

/** An outbox whose ring has room for one frame more each time the test gives credit. */
function outbox() {
  const words = new Int32Array(4)
  let posted = 0
  let limit = 0
  const port = {
    flushLent(): never {
      throw new Error('no payload here is long enough to be lent')
    },
    reserve(next: number) {
      words.set([next, Math.max(limit, next), posted])
      return next < limit ? SEND.done : SEND.full
    },
    flush(next: number) {
      posted = next
      words.set([next, Math.max(limit, next), posted])
      return SEND.done
    },
  }
  const stagingWriter = new StagingWriter(
    4,
    new ArrayBuffer(4096),
    new Windows(12, 1),
    words,
    new Int32Array([1]),
    port,
    {
      frames: 128,
      bytes: 4096,
    },
  )
  const link = { stagingWriter, maxMessageLength: 2032, longestMessage: 2032, poller: { scheduleFlush() {} } }
  const made = new Outbox({ id: { description: 'link' }, drained: () => true, ...link }, () => {
    throw new Error('the queue pair accepts no more work requests')
  })
  const fields = new DataView(stagingWriter.bytes.buffer)
  return {
    outbox: made,
    credit: (frames: number) => {
      limit += frames
    },
    /** the first byte of the payload of a request, the first frame in the ring */
    firstByte: () => fields.getUint8(16),
    /** immediates of the first `count` frames, in their order in the ring */
    laidOut: (count: number) =>
      Array.from({ length: count }, (_, at) => fields.getUint32(at * UNIT + 4, true)),
  }
}

const EMPTY = new Uint8Array()
const data = (immediate: number) => ({ type: TYPE.data, immediate })

describe('a frame that waits for room', () => {
  it('goes before one that finds the room it waits for', async () => {
    const { outbox: made, credit, laidOut } = outbox()
    const waiting = made.post(data(1), EMPTY)
    expect(waiting).toBeDefined()
    credit(2)
    expect(made.send(TYPE.data, 0, 2, EMPTY)).toBe(false)
    made.onWritable(true)
    await waiting
    expect(made.send(TYPE.data, 0, 3, EMPTY)).toBe(true)
    expect(laidOut(2)).toEqual([1, 3])
  })

  it('fails in its turn if its bytes were detached, and stops none behind it', async () => {
    const { outbox: made, credit, laidOut } = outbox()
    const bytes = new Uint8Array([1])
    structuredClone(bytes.buffer, { transfer: [bytes.buffer] })
    const sent: string[] = []
    const detached = made.post(data(1), bytes, undefined, () => sent.push('detached'))
    const behind = made.post(data(2), EMPTY, undefined, () => sent.push('behind'))
    credit(2)
    made.onWritable(true)
    await expect(detached).rejects.toThrow(TypeError)
    await behind
    expect(sent).toEqual(['behind'])
    expect(laidOut(1)).toEqual([2])
  })

  it.each([
    ['an array', new Uint8Array([1])],
    ['a Buffer, whose slices are views', Buffer.from([1])],
  ])('is what it was when it was posted: %s', (_, bytes) => {
    const { outbox: made, credit, firstByte } = outbox()
    void made.post({ type: TYPE.request }, bytes)
    bytes[0] = 2
    credit(2)
    made.onWritable(true)
    expect(firstByte()).toBe(1)
  })

  it('goes behind those that waited before it', async () => {
    const { outbox: made, credit, laidOut } = outbox()
    const waiting = [1, 2, 3].map((immediate) => made.post(data(immediate), EMPTY))
    credit(1)
    made.onWritable(true)
    await waiting[0]
    const late = made.post(data(4), EMPTY)
    credit(3)
    made.onWritable(true)
    await Promise.all([...waiting, late])
    expect(laidOut(4)).toEqual([1, 2, 3, 4])
  })

  it('goes before what is claimed when there is room for it', async () => {
    const { outbox: made, credit, laidOut } = outbox()
    const waiting = made.post(data(1), EMPTY)
    credit(2)
    expect(made.claim(0)).toBe(-1)
    made.onWritable(true)
    await waiting
    expect(made.claim(0)).toBeGreaterThan(0)
    made.commit(0, 2)
    expect(laidOut(2)).toEqual([1, 2])
  })
})
