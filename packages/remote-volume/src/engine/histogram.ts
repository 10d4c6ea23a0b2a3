import type { NativeHistogram } from './volume-addon.js'

/** All of them together. */
export function addHistograms(histograms: readonly NativeHistogram[]): NativeHistogram {
  const counts = new Map<number, [number, number, number]>()
  let sum = 0
  for (const histogram of histograms) {
    sum += histogram.sum
    for (const [from, to, count] of histogram.buckets)
      counts.set(from, [from, to, count + (counts.get(from)?.[2] ?? 0)])
  }
  return { sum, buckets: [...counts.values()].sort(([a], [b]) => a - b) }
}

/** What was counted since `before`, an earlier state of the same histogram. */
export function histogramSince(now: NativeHistogram, before: NativeHistogram): NativeHistogram {
  const counted = new Map(before.buckets.map(([from, , count]) => [from, count]))
  return {
    sum: now.sum - before.sum,
    buckets: now.buckets
      .map(([from, to, count]): [number, number, number] => [from, to, count - (counted.get(from) ?? 0)])
      .filter(([, , count]) => count > 0),
  }
}

/**
 * A value that `share` of what was counted does not exceed; undefined when nothing was.
 * @param share from 0 to 1
 */
export function percentile(histogram: NativeHistogram, share: number): number | undefined {
  const wanted = share * countOf(histogram)
  let counted = 0
  for (const [, to, count] of histogram.buckets) {
    counted += count
    if (counted >= wanted) return to
  }
  return undefined
}

export function countOf({ buckets }: NativeHistogram): number {
  return buckets.reduce((sum, [, , count]) => sum + count, 0)
}
