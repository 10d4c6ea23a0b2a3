// Round by round, so that a bad minute of the machine spoils one sample of everything and not all of one.

/** The results of one sample, by name. */
export type Figures = Readonly<Record<string, number>>

/** One thing that is measured. */
export interface Candidate {
  readonly name: string
  /** Not ours: measured for comparison. */
  readonly peer?: boolean
  measure(): Promise<Figures>
}

/** Candidates that are compared with each other, so they come one right after the other. */
export interface Group {
  readonly name: string
  /** How long one sample takes, about, with what starts and ends its processes. */
  readonly seconds: number
  readonly candidates: readonly Candidate[]
}

/** Every round of one candidate. */
export interface Series {
  readonly group: string
  readonly candidate: string
  /** undefined: the sample failed. */
  readonly rounds: (Figures | undefined)[]
  readonly failures: string[]
}

/** A candidate that failed this often is left alone: each of its deadlines would be waited for in each round. */
const MOST_FAILURES = 2

export class Samples {
  readonly series: readonly Series[]

  constructor(series: readonly Series[]) {
    this.series = series
  }

  /** One figure in each round; NaN where it is missing. */
  of(group: string, candidate: string, figure: string): number[] {
    return figureOf(this.#find(group, candidate), figure)
  }

  has(group: string, candidate: string): boolean {
    return this.#find(group, candidate) !== undefined
  }

  get failures(): string[] {
    return this.series.flatMap(({ group, candidate, failures }) =>
      failures.map((failure) => `${group}: ${candidate}: ${failure}`),
    )
  }

  #find(group: string, candidate: string): Series | undefined {
    return this.series.find((one) => one.group === group && one.candidate === candidate)
  }
}

export const figureOf = (series: Series | undefined, figure: string): number[] =>
  (series?.rounds ?? []).map((round) => round?.[figure] ?? Number.NaN)

/** Receives the progress. Rounds count from 1. */
export interface Progress {
  /** A sample of `cell` begins. */
  begins(round: number, cell: string): void
  /** It is over. @param expected seconds that it should have taken */
  ends(expected: number): void
  roundEnds(round: number): void
}

const NO_PROGRESS: Progress = { begins() {}, ends() {}, roundEnds() {} }

/**
 * Every second round goes through the candidates of a group from the last to the first, so that none of two
 * neighbours is always the one that finds the caches and the clock as the other has left them.
 */
export async function measureRounds(
  groups: readonly Group[],
  rounds: number,
  progress: Progress = NO_PROGRESS,
): Promise<Samples> {
  const cells = groups.map(({ name, seconds, candidates }) =>
    candidates.map((candidate) => ({
      candidate,
      seconds,
      series: { group: name, candidate: candidate.name, rounds: [], failures: [] } as Series,
    })),
  )
  for (let round = 1; round <= rounds; round++) {
    for (const group of cells)
      for (const { candidate, seconds, series } of round % 2 === 1 ? group : group.toReversed()) {
        progress.begins(round, `${series.group}: ${series.candidate}`)
        series.rounds.push(await sample(candidate, series))
        progress.ends(seconds)
      }
    progress.roundEnds(round)
  }
  return new Samples(cells.flat().map(({ series }) => series))
}

async function sample(candidate: Candidate, { failures }: Series): Promise<Figures | undefined> {
  if (failures.length >= MOST_FAILURES) return undefined
  try {
    return await candidate.measure()
  } catch (failure) {
    failures.push(failure instanceof Error ? failure.message : String(failure))
    return undefined
  }
}
