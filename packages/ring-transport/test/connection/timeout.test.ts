import { UsageError } from '@rdmakit/verbs'
import { expect, it } from 'vitest'
import { LONGEST_MS, left, milliseconds } from '../../src/base/timeout.js'

it.each([0.5, 1, 5_000, LONGEST_MS])('%d ms can be waited for', (value) => {
  expect(milliseconds('timeout', value)).toBe(value)
})

it('for ever is as long as a timer runs', () => {
  expect(milliseconds('timeout', Number.POSITIVE_INFINITY)).toBe(2 ** 31 - 1)
})

it.each([0, -1, Number.NaN, LONGEST_MS + 1, Number.NEGATIVE_INFINITY, '1' as unknown as number])(
  '%s ms cannot',
  (value) => {
    expect(() => milliseconds('drainTime', value)).toThrow(UsageError)
    expect(() => milliseconds('drainTime', value)).toThrow(/^drainTime must be milliseconds/)
  },
)

it('a deadline that is past is due at once, one for ever as late as a timer runs', () => {
  expect(left(performance.now() - 5)).toBe(1)
  expect(left(Number.POSITIVE_INFINITY)).toBe(LONGEST_MS)
  for (let i = 0; i < 1000; i++) expect(left(performance.now() + LONGEST_MS)).toBeLessThanOrEqual(LONGEST_MS)
})
