import fc from 'fast-check'
import { expect, it } from 'vitest'
import { UnreleasedFrames } from '../../src/receiving/unreleased-frames.js'

it('gives the ring back up to the oldest frame that is held, whatever the order of release', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(3), { minLength: 1, maxLength: 3000 }), (steps) => {
      const held = new UnreleasedFrames()
      const frames: { end: number; isHeld: boolean }[] = []
      let end = 0
      for (const step of steps) {
        if (step < 2) {
          frames.push({ end: ++end, isHeld: true })
          held.add(frames.at(-1) as { end: number; isHeld: boolean })
        } else {
          const open = frames.filter(({ isHeld }) => isHeld)
          const one = open[(end * 7) % Math.max(1, open.length)]
          if (one !== undefined) one.isHeld = false
          held.advance()
          const first = frames.find(({ isHeld }) => isHeld)
          expect(held.released).toBe(first === undefined ? end : first.end - 1)
        }
      }
      for (const frame of frames) frame.isHeld = false
      held.advance()
      expect(held).toMatchObject({ released: end, count: 0 })
    }),
  )
})
