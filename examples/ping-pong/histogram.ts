const BAR = 50
/** Bounds of a decade: a bar's times differ by 2.5 at most. */
const STEPS = [1, 2, 5] as const
const PERCENTILES = [50, 90, 99, 99.9, 99.99] as const

const shown = (microseconds: number) => `${microseconds.toFixed(microseconds < 10 ? 2 : 1)} µs`

/** Prints times in microseconds: a bar for each range of them, then percentiles. Sorts them. */
export function printHistogram(times: Float64Array): void {
  times.sort()
  const [least = 0, most = 0] = [times[0], times.at(-1)]
  let from = 0
  for (const bound of bounds(least, most)) {
    let to = from
    while (to < times.length && (times[to] as number) < bound) to++
    const share = (to - from) / times.length
    from = to
    const bar = '█'.repeat(Math.round(share * BAR))
    console.log(`<${shown(bound).padStart(12)} ${(100 * share).toFixed(2).padStart(7)} %  ${bar}`.trimEnd())
  }
  for (const percentile of PERCENTILES) {
    const at = Math.min(times.length - 1, Math.floor((times.length * percentile) / 100))
    console.log(`${`p${percentile}`.padEnd(8)}${shown(times[at] as number)}`)
  }
  console.log(`max     ${shown(most)}`)
}

/** 1, 2 and 5 of each decade, from the first above `least` to the first above `most`. */
function* bounds(least: number, most: number): Generator<number> {
  for (let decade = 0.01; ; decade *= 10)
    for (const step of STEPS) {
      const bound = decade * step
      if (bound <= least) continue
      yield bound
      if (bound > most) return
    }
}
