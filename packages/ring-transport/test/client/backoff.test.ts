import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Backoff } from '../../src/client/backoff.js'

describe('a backoff', () => {
  it('waits at most min, then factor times more, up to max', () => {
    const backoff = new Backoff({ min: 100, max: 1000, factor: 3 })
    expect(Array.from({ length: 5 }, () => backoff.next(1))).toEqual([100, 300, 900, 1000, 1000])
  })

  it('is random over all of that', () => {
    const backoff = new Backoff({ min: 100, factor: 1 })
    expect([backoff.next(0), backoff.next(0.25), backoff.next(1)]).toEqual([0, 25, 100])
    const waits = Array.from({ length: 200 }, () => backoff.next())
    expect(Math.min(...waits)).toBeLessThan(20)
    expect(Math.max(...waits)).toBeGreaterThan(80)
  })

  it('begins again after a connection that lasted longer than the wait, not after one that did not', () => {
    const backoff = new Backoff({ min: 100, max: 10_000, factor: 10 })
    backoff.next(1)
    backoff.lasted(900)
    expect(backoff.next(1)).toBe(1000)
    backoff.lasted(10_001)
    expect(backoff.next(1)).toBe(100)
  })

  it('never waits longer than max, whatever its options', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 1, max: 1e6, noNaN: true }),
        fc.double({ min: 1, max: 3, noNaN: true }),
        fc.double({ min: 1, max: 100, noNaN: true }),
        (min, times, factor) => {
          const max = Math.min(3_600_000, min * times)
          const backoff = new Backoff({ min, max, factor })
          for (let i = 0; i < 100; i++) expect(backoff.next()).toBeLessThanOrEqual(max)
        },
      ),
    )
  })

  it.each([
    ['min', { min: 0 }],
    ['max', { min: 100, max: 99 }],
    ['factor', { factor: 0.5 }],
    ['maxAttempts', { maxAttempts: 0 }],
    ['min', { min: Number.NaN }],
  ])('of options out of range names the option: %s', (name, options) => {
    expect(() => new Backoff(options)).toThrow(`reconnect.${name}`)
  })
})
