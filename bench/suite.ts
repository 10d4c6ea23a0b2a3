// The interface of a suite, and the parameters of a run.
import type { Build } from './against/build.js'
import type { RunProgress } from './core/progress.js'
import type { Better, Report } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'

/** A figure by which two builds are compared. */
export interface Figure {
  /** Of a sample. */
  readonly key: string
  readonly name: string
  readonly unit: string
  readonly better: Better
}

export interface Suite {
  readonly name: string
  /** What a sample is, in one sentence. */
  readonly about: string
  readonly figures: readonly Figure[]
  /** What is measured of a build. Nothing is started before a candidate is measured. */
  groups(build: Build): readonly Group[]
  report(samples: Samples): Pick<Report, 'tables' | 'limits'>
  /** After the last round. @returns why the figures are not to be trusted */
  check?(): Promise<readonly string[]>
  close?(): Promise<void>
}

/** What a suite may know before it is made. */
export interface Place {
  /** A temporary folder, for sockets. */
  readonly folder: string
  /** Short and rough. */
  readonly quick: boolean
}

export interface Run {
  readonly rounds: number
  readonly quick: boolean
  /** Of the names of cells; all without it. */
  readonly only: RegExp | undefined
  readonly build: Build
  /** What `build` is compared with, if it is. */
  readonly other: Build | undefined
  readonly progress: RunProgress
  /** Tells people what else there is to know. */
  readonly say: (line: string) => void
}
