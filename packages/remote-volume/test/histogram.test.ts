import { describe, expect, it } from 'vitest'
import { addHistograms, countOf, histogramSince, percentile } from '../src/engine/histogram.js'

const first = {
  sum: 50,
  buckets: [
    [4, 5, 2],
    [8, 10, 3],
  ] as [number, number, number][],
}
const second = {
  sum: 60,
  buckets: [
    [5, 6, 1],
    [8, 10, 5],
  ] as [number, number, number][],
}

describe('latency histograms', () => {
  it('are added bucket by bucket, in order', () => {
    const sum = {
      sum: 110,
      buckets: [
        [4, 5, 2],
        [5, 6, 1],
        [8, 10, 8],
      ],
    }
    expect(addHistograms([second, first])).toEqual(sum)
    expect(countOf(addHistograms([first, second]))).toBe(11)
  })

  it('of a time are what was counted in it', () => {
    expect(histogramSince(addHistograms([first, second]), first)).toEqual(second)
    expect(histogramSince(first, first)).toEqual({ sum: 0, buckets: [] })
  })

  it.each([
    [0, 5],
    [0.4, 5],
    [0.41, 10],
    [1, 10],
  ])('percentile %d is the upper end of its bucket', (share, value) => {
    expect(percentile(first, share)).toBe(value)
  })

  it('of nothing have no percentiles', () => {
    expect(percentile({ sum: 0, buckets: [] }, 0.5)).toBeUndefined()
  })
})
