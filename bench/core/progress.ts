/** "40 s", "2.5 min", "12 min" */
export function duration(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`
  const minutes = seconds / 60
  return `${minutes < 10 ? minutes.toFixed(1) : Math.round(minutes)} min`
}

/** What is said after each round. */
export const progress =
  (name: string, rounds: number, say: (line: string) => void) =>
  (done: number, seconds: number): void => {
    const left = done < rounds ? `, about ${duration((seconds / done) * (rounds - done))} left` : ''
    say(`${name}: ${done} of ${rounds} rounds after ${duration(seconds)}${left}`)
  }
