const MOST_ROUNDS = 8

/**
 * Bytes that a round of work leaves behind: the least of several rounds, of which there are no more than it takes to be
 * within `limit`. What leaks grows in each; heaps and allocators rise too, and then stay where they are, at a level of
 * their own, which each version of V8 and of libc sets elsewhere.
 */
export async function growth(
  measure: () => number | Promise<number>,
  round: () => Promise<unknown>,
  limit: number,
): Promise<number> {
  let least = Number.POSITIVE_INFINITY
  let before = await measure()
  for (let rounds = 0; rounds < MOST_ROUNDS && least >= limit; rounds++) {
    await round()
    const after = await measure()
    least = Math.min(least, after - before)
    before = after
  }
  return least
}
