// The memory that the host keeps, and how much it lacks.
import { describe, expect, it } from 'vitest'
import { HostHeadroom, parseHeadroom } from '../../src/server/memory/host-headroom.js'

describe('headroom', () => {
  it.each([
    ['0', 0],
    ['5%', 50],
    ['2.5%', 25],
    ['64K', 65536],
  ])('%s of 1000 bytes is %i', (text, bytes) => expect(parseHeadroom(text, 1000)).toBe(bytes))

  it.each(['lots', '95%', '-1', '5 %%'])('refuses %s', (text) =>
    expect(() => parseHeadroom(text, 1000)).toThrow(/--headroom/),
  )

  it('misses nothing above, and wants a quarter more once it was below', () => {
    const headroom = new HostHeadroom(100)
    const missing = (available: number, stalled = 0) => {
      headroom.update({ available, stalled })
      return headroom.missing
    }
    expect([missing(101), headroom.spare]).toEqual([0, 1])
    expect([missing(99), headroom.spare]).toEqual([26, 0])
    expect([missing(110), headroom.spare]).toEqual([15, 0])
    expect([missing(125), headroom.spare]).toEqual([0, 25])
    expect(missing(101)).toBe(0)
  })

  it('is double while the kernel stalls', () => {
    const headroom = new HostHeadroom(100)
    headroom.update({ available: 150, stalled: 11 })
    expect([headroom.wanted, headroom.missing, headroom.spare]).toEqual([200, 100, 0])
    headroom.update({ available: 150, stalled: 10 })
    expect([headroom.wanted, headroom.missing, headroom.spare]).toEqual([100, 0, 50])
  })

  it('of 0 bytes looks at nothing', () => {
    const headroom = new HostHeadroom(0)
    headroom.update({ available: 0, stalled: 100 })
    expect([headroom.missing, headroom.spare]).toEqual([0, Number.POSITIVE_INFINITY])
  })
})
