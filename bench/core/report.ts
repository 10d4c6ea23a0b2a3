// The results of a suite, before they are judged or printed. They are plain data: the lab passes them as JSON
// (judge.ts), where NaN becomes null.

import type { Series } from './rounds.js'

/** One figure in each round, or a number or a word that does not vary. */
export type Value = readonly number[] | number | string

export interface Table {
  readonly title: string
  /** The first one names the row. */
  readonly columns: readonly string[]
  readonly rows: readonly (readonly Value[])[]
  readonly note?: string
}

/** The limit of a figure. */
export interface Limit {
  readonly what: string
  /** One in each round. A limit that depends on a peer is for the ratio to it, taken within the round. */
  readonly rounds: readonly number[]
  readonly unit: string
  readonly bound: '≤' | '≥'
  readonly limit: number
}

/** Which way a figure is better. */
export type Better = 'lower' | 'higher'

/** One figure of two builds, round by round. */
export interface Paired {
  readonly these: readonly number[]
  readonly others: readonly number[]
}

export interface Comparison {
  readonly cell: string
  readonly figure: string
  readonly unit: string
  readonly better: Better
  readonly first: Paired
  /** A second series, apart from the first, of a cell that looked slower: the verdict needs both. */
  readonly again?: Paired
}

export interface Report {
  readonly suite: string
  /** What a sample is, in one sentence. */
  readonly about: string
  readonly rounds: number
  /** One short and rough round, which is never judged. */
  readonly quick: boolean
  readonly tables: readonly Table[]
  readonly limits: readonly Limit[]
  readonly comparisons: readonly Comparison[]
  /** Everything that was measured, for programs. */
  readonly samples: readonly Series[]
  /** Why samples are missing, or why none of them is to be trusted. */
  readonly failures: readonly string[]
}
