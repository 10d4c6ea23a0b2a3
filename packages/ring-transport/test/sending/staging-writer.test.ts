// After how many frames a batch leaves, in the middle of a turn of the event loop.
import { expect, it } from 'vitest'
import { SEND, TYPE } from '../../src/native.js'
import { StagingWriter } from '../../src/sending/staging-writer.js'
import { settings } from '../../src/setup/options.js'
import { Windows } from '../../src/setup/ring-layout.js'

const DEFAULT = settings({}).batchFrames

/** Batches of `most` frames, each of one unit; what `turn` lays out is posted by its end. */
function writer(hurry: number, most = DEFAULT, log2Capacity = 16) {
  const units = 2 ** (log2Capacity - 4)
  let posted = 0
  const batches: number[] = []
  const words = new Int32Array(4)
  const port = {
    reserve(next: number) {
      words.set([next, units, posted])
      return SEND.done
    },
    flush(next: number) {
      batches.push(next - posted)
      posted = next
      words.set([next, units, next])
      return SEND.done
    },
    flushLent(): never {
      throw new Error('no payload here is long enough to be lent')
    },
  }
  const limits = { frames: most, bytes: 2 ** log2Capacity }
  const staging = new ArrayBuffer(2 ** log2Capacity)
  const made = new StagingWriter(
    4,
    staging,
    new Windows(log2Capacity, 1),
    words,
    new Int32Array([hurry]),
    port,
    limits,
  )
  return {
    batches,
    turn(type: number, frames: number) {
      for (let frame = 0; frame < frames; frame++) {
        expect(made.place(type, 0)).toBeGreaterThan(0)
        expect(made.commit(type, 0, frame, 0)).toBe(SEND.done)
      }
      expect(made.flush()).toBe(SEND.done)
    },
  }
}

it.each([
  ['requests', TYPE.request, DEFAULT],
  ['answers', TYPE.response, DEFAULT],
  ['requests of small batches', TYPE.request, 128],
])('in a hurry few %s leave first, then twice as many each time, and so in each turn', (_, type, most) => {
  const { batches, turn } = writer(1, most)
  turn(type, 300)
  expect(batches).toEqual([4, 8, 16, 32, 64, 128, 48])
  turn(type, 20)
  expect(batches.slice(7)).toEqual([4, 8, 8])
})

it.each([
  ['requests without hurry', TYPE.request, 0],
  ['messages, which nobody waits for', TYPE.data, 1],
])('%s leave 512 at a time', (_, type, hurry) => {
  const { batches, turn } = writer(hurry)
  turn(type, 1000)
  expect(batches).toEqual([512, 488])
})

it('a quarter of the ring ends a batch, so that its receiver consumes one while the next is laid out', () => {
  const { batches, turn } = writer(0, DEFAULT, 12)
  turn(TYPE.data, 200)
  expect(batches).toEqual([64, 64, 64, 8])
})
