// How far a run is: a bar on a terminal, else a line after each round. On stderr, as stdout is for results.
import { SingleBar } from 'cli-progress'
import type { Progress } from './rounds.js'

/** Redraws of the bar. More would wake this process while it measures others. */
const REDRAWS_A_SECOND = 1
const BAR_CHARACTERS = 24

/** "40 s", "2.5 min", "12 min" */
export function duration(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`
  const minutes = seconds / 60
  return `${minutes < 10 ? minutes.toFixed(1) : Math.round(minutes)} min`
}

interface RunProgressOptions {
  /** Prints a line. */
  readonly say: (line: string) => void
  /** Where a bar goes, if it is a terminal. */
  readonly stream?: NodeJS.WriteStream
  /** Milliseconds of a clock. */
  readonly now?: () => number
}

/** The progress of all series of a run, in all suites. */
export class RunProgress {
  /** Seconds that all samples should take, and those that are over should have taken. */
  #expected: number
  #done = 0
  /** Seconds that those took. What else a run does, like the lab, is not in it. */
  #took = 0
  readonly #say: (line: string) => void
  readonly #stream: NodeJS.WriteStream
  readonly #now: () => number

  /** @param expected seconds that the samples of all series should take */
  constructor(
    expected: number,
    { say, stream = process.stderr, now = () => performance.now() }: RunProgressOptions,
  ) {
    this.#expected = expected
    this.#say = say
    this.#stream = stream
    this.#now = now
  }

  /** There is more to do than was known at first. */
  expectMore(seconds: number): void {
    this.#expected += seconds
  }

  /** Shows how far it is while `measure` goes on. */
  async during<T>(name: string, rounds: number, measure: (progress: Progress) => Promise<T>): Promise<T> {
    const bar = this.#stream.isTTY ? this.#bar() : undefined
    bar?.start(this.#expected, this.#done, { left: this.#left(), what: name })
    let begin = 0
    try {
      return await measure({
        begins: (round, cell) => {
          begin = this.#now()
          const what = `${name}, round ${round} of ${rounds}: ${cell}`
          bar?.update(this.#done, { left: this.#left(), what })
        },
        ends: (expected) => {
          this.#done += expected
          this.#took += (this.#now() - begin) / 1000
        },
        roundEnds: (round) => {
          if (bar !== undefined) return
          const share = Math.floor((100 * this.#done) / this.#expected)
          const left = this.#done < this.#expected ? `, about ${this.#left()} left` : ''
          this.#say(
            `${name}: ${round} of ${rounds} rounds; ${share} % of all in ${duration(this.#took)}${left}`,
          )
        },
      })
    } finally {
      bar?.stop()
    }
  }

  /** The expected time of the rest, corrected by the times so far. */
  #left(): string {
    const correction = this.#done > 0 ? this.#took / this.#done : 1
    return duration((this.#expected - this.#done) * correction)
  }

  #bar(): SingleBar {
    return new SingleBar({
      format: 'bench: {bar} {percentage} %, about {left} left; {what}',
      stream: this.#stream,
      fps: REDRAWS_A_SECOND,
      barsize: BAR_CHARACTERS,
      barCompleteChar: '█',
      barIncompleteChar: '░',
      clearOnComplete: true,
      // A line that is too long is cut. The terminal's own settings are left alone: nothing restores them on Ctrl-C.
      linewrap: true,
    })
  }
}
