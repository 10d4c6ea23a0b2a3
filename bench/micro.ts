// The time of single operations, within one process: what a change costs that larger cells show too late or not at all.
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { OURS } from './core/cells.js'
import { run } from './core/child.js'
import type { Report } from './core/report.js'
import type { Figures, Samples } from './core/rounds.js'
import { CASES } from './micro/cases.js'
import type { Place, Suite } from './suite.js'

const FIGURE = 'nanosecondsEach'
/** For each sample. */
const MILLISECONDS = 400
const QUICK_MILLISECONDS = 100
const START_SECONDS = 0.4
const DEADLINE_MS = 30_000

export function micro({ folder, quick }: Place): Suite {
  const milliseconds = quick ? QUICK_MILLISECONDS : MILLISECONDS
  return {
    name: 'micro',
    about: `a process for each sample, of which both ends are one thread over shm; ${milliseconds} ms each`,
    figures: [{ key: FIGURE, name: 'time', unit: 'ns', better: 'lower' }],
    groups: (build) =>
      CASES.map(({ name }) => ({
        name,
        seconds: START_SECONDS + (1.25 * milliseconds) / 1000,
        candidates: [
          {
            name: OURS,
            measure: async () => {
              const sockets = mkdtempSync(join(folder, 'micro-'))
              const words = [...build.script('micro'), name, String(milliseconds), sockets]
              const { stdout } = await run(process.execPath, words, {
                timeout: DEADLINE_MS,
                killSignal: 'SIGKILL',
              })
              return JSON.parse(stdout) as Figures
            },
          },
        ],
      })),
    report,
  }
}

function report(samples: Samples): Pick<Report, 'tables' | 'limits'> {
  const rows = CASES.map(({ name }) => [name, samples.of(name, OURS, FIGURE)])
  const note = 'a request: the mean of 100 that are outstanding at once'
  return { tables: [{ title: 'an operation', columns: ['operation', 'ns each'], rows, note }], limits: [] }
}
