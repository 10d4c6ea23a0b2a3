// Messages from JavaScript to JavaScript, between two processes of one machine: the ring over shm and iwarp in each
// way of waiting, beside Node's sockets and zeromq.js.
import type { Build } from './against/build.js'
import type { Candidate, Group } from './core/rounds.js'
import { CASES, groupOf, MEMCPY, SIZES, STEP_CASES } from './ring/cases.js'
import { limits } from './ring/limits.js'
import { memcpy, pair } from './ring/measure.js'
import { tables } from './ring/tables.js'
import type { Place, Suite } from './suite.js'

/** For each thing that is timed. */
const MILLISECONDS = 200
const QUICK_MILLISECONDS = 60
/** Things that a sample times, one way or another, and what it takes to start and end two processes. */
const TIMED = 5
const START_SECONDS = 0.5

export function ring({ folder, quick }: Place): Suite {
  const milliseconds = quick ? QUICK_MILLISECONDS : MILLISECONDS
  const seconds = START_SECONDS + (TIMED * milliseconds) / 1000
  const group = (size: number, build: Build): Group => ({
    name: groupOf(size),
    seconds,
    candidates: [
      ...[...CASES, ...STEP_CASES]
        .filter(({ sizes }) => sizes.includes(size))
        .map((one) => ({
          name: one.name,
          peer: one.peer === true,
          measure: () => pair(build, one, size, folder, milliseconds),
        })),
      ...(size === 2 ** 20 ? [copy(milliseconds)] : []),
    ],
  })
  return {
    name: 'ring',
    about: `two processes, started for each sample; ${milliseconds} ms for each thing that is timed`,
    figures: [
      { key: 'p50', name: 'round trip, p50', unit: 'µs', better: 'lower' },
      { key: 'messagesPerSecond', name: 'messages one way', unit: '1/s', better: 'higher' },
    ],
    groups: (build) => SIZES.map((size) => group(size, build)),
    report: (samples) => ({ tables: tables(samples), limits: limits(samples) }),
  }
}

const copy = (milliseconds: number): Candidate => ({
  name: MEMCPY,
  peer: true,
  measure: () => memcpy(milliseconds),
})
