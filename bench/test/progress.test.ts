// Costs nothing: the clock is an argument.
import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { duration, RunProgress } from '../core/progress.js'
import type { Progress } from '../core/rounds.js'

/** ECMA-48, EL with 2. */
const CLEAR_LINE = '\u001b[2K'

/** Two rounds of two samples that should take a second each. */
const rounds = async (progress: Progress) => {
  for (const round of [1, 2]) {
    for (const cell of ['a', 'b']) {
      progress.begins(round, cell)
      progress.ends(1)
    }
    progress.roundEnds(round)
  }
}

/** Each look at it is three seconds after the one before. */
const slowClock = () => {
  let milliseconds = 0
  return () => {
    milliseconds += 3000
    return milliseconds
  }
}

test('a time is rounded to what anybody wants to know', () => {
  expect([0.2, 40, 89, 90, 601, 720].map(duration)).toEqual([
    '1 s',
    '40 s',
    '89 s',
    '1.5 min',
    '10 min',
    '12 min',
  ])
})

test('what is left is corrected by what took longer, in all series of a run', async () => {
  const said: string[] = []
  const stream = new PassThrough() as unknown as NodeJS.WriteStream
  const run = new RunProgress(8, { say: (line) => said.push(line), stream, now: slowClock() })
  await run.during('one', 2, rounds)
  run.expectMore(2)
  await run.during('two', 2, rounds)
  await run.during('three', 1, async (progress) => {
    progress.begins(1, 'c')
    progress.ends(2)
    progress.roundEnds(1)
  })
  expect(said).toEqual([
    'one: 1 of 2 rounds; 25 % of all in 6 s, about 18 s left',
    'one: 2 of 2 rounds; 50 % of all in 12 s, about 12 s left',
    'two: 1 of 2 rounds; 60 % of all in 18 s, about 12 s left',
    'two: 2 of 2 rounds; 80 % of all in 24 s, about 6 s left',
    'three: 1 of 1 rounds; 100 % of all in 27 s',
  ])
})

test('a terminal has a bar, which is gone afterwards', async () => {
  const stream = Object.assign(new PassThrough({ encoding: 'utf8' }), { isTTY: true, columns: 120 })
  const said: string[] = []
  const terminal = stream as unknown as NodeJS.WriteStream
  const run = new RunProgress(4, { say: (line) => said.push(line), stream: terminal, now: slowClock() })
  await run.during('one', 2, rounds)
  expect(said).toEqual([])
  const written: string = stream.read()
  expect(written).toContain('0 %, about 4 s left; one')
  expect(written.endsWith(CLEAR_LINE)).toBe(true)
})
