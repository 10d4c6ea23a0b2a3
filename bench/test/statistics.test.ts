import fc from 'fast-check'
import { expect, test } from 'vitest'
import { differences, LEAST_ROUNDS, median, outside, ratios, spread } from '../core/statistics.js'

test('the median of an even number of rounds lies between the middle two', () => {
  expect(median([4, 1, 3, 2])).toBe(2.5)
  expect(median([3, 1, 2])).toBe(2)
})

test('a missing round counts for nothing', () => {
  expect(median([Number.NaN, 5, 1, 3])).toBe(3)
  expect(spread([Number.NaN, 5, 1, 3]).count).toBe(3)
})

test('no rounds have no median', () => {
  expect(spread([])).toEqual({ median: Number.NaN, low: Number.NaN, high: Number.NaN, count: 0 })
})

test('the spread of five rounds is from the least to the greatest', () => {
  expect(spread([3, 1, 100, 2, 4])).toEqual({ median: 3, low: 1, high: 100, count: 5 })
})

test('of ten rounds, one at either end lies outside of the spread', () => {
  expect(spread([10, 9, 8, 7, 6, 5, 4, 3, 2, 1])).toEqual({ median: 5.5, low: 2, high: 9, count: 10 })
})

// The binomial distribution with p = 1/2: 13 throws have at most 3 heads in 4.6 % of all cases, at most 4 in 13 %.
test.each([
  [1, 0],
  [4, 0],
  [5, 0],
  [7, 0],
  [8, 1],
  [10, 1],
  [11, 2],
  [13, 3],
  [15, 3],
  [16, 4],
  [20, 5],
])('of %i rounds %i at either end lie outside', (count, cut) => {
  expect(outside(count)).toBe(cut)
})

test('five rounds are the fewest with a chance of at most 5 % on either side', () => {
  expect(0.5 ** LEAST_ROUNDS).toBeLessThanOrEqual(0.05)
  expect(0.5 ** (LEAST_ROUNDS - 1)).toBeGreaterThan(0.05)
})

test('the median lies within the spread, and the order of the rounds does not matter', () => {
  const rounds = fc.array(fc.double({ noNaN: true, min: -1e6, max: 1e6 }), { minLength: 1, maxLength: 40 })
  fc.assert(
    // Zero has one sign here.
    fc.property(
      rounds.map((some) => some.map((value) => value + 0)),
      (values) => {
        const { median: middle, low, high } = spread(values)
        expect(low).toBeLessThanOrEqual(middle)
        expect(high).toBeGreaterThanOrEqual(middle)
        expect(spread([...values].reverse())).toEqual(spread(values))
      },
    ),
  )
})

test('ratios and differences are taken round by round', () => {
  expect(ratios([2, 9, 4], [1, 3])).toEqual([2, 3, Number.NaN])
  expect(differences([2, 9, 4], [1, 3])).toEqual([1, 6, Number.NaN])
})
