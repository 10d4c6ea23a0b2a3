// The ring with no option set, as a newcomer measures it, beside Node's sockets: messages and requests, both ends
// asleep between them, on one core and on a core each.
import type { Build } from './against/build.js'
import type { Group } from './core/rounds.js'
import { pair } from './ring/measure.js'
import { type Cell, casesOf, cells, groupOf } from './ring-default/cells.js'
import { limits } from './ring-default/limits.js'
import { tables } from './ring-default/tables.js'
import type { Place, Suite } from './suite.js'

/** For each thing that is timed. */
const MILLISECONDS = 200
const QUICK_MILLISECONDS = 60
/**
 * Of that before it: V8 compiles what it sees often on the same core as the two ends, and the ring has more code of its
 * own than `net`, which Node brings compiled. Requests of 32 KiB had half of their later rate after 200 ms.
 */
const WARM_UP = 3
/** The time that a sample measures in any way, and the time to start and end two processes. */
const TIMED = 3 + 2 * WARM_UP
const START_SECONDS = 0.5

export function ringDefault({ folder, quick }: Place): Suite {
  const milliseconds = quick ? QUICK_MILLISECONDS : MILLISECONDS
  const all = cells(quick)
  const group = (cell: Cell, build: Build): Group => ({
    name: groupOf(cell),
    seconds: START_SECONDS + (TIMED * milliseconds) / 1000,
    candidates: casesOf(cell).map((one) => ({
      name: one.name,
      peer: one.peer === true,
      measure: () =>
        pair(build, one, cell.size, folder, milliseconds, cell.placement, WARM_UP * milliseconds),
    })),
  })
  return {
    name: 'ring-default',
    about: `two processes, pinned and started for each sample; ${milliseconds} ms for each thing that is timed, after ${WARM_UP * milliseconds}`,
    figures: [
      { key: 'p50', name: 'round trip, p50', unit: 'µs', better: 'lower' },
      { key: 'messagesPerSecond', name: 'messages or requests', unit: '1/s', better: 'higher' },
    ],
    groups: (build) => all.map((cell) => group(cell, build)),
    report: (samples) => ({ tables: tables(all, samples), limits: limits(all, samples) }),
  }
}
