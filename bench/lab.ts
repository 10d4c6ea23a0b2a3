// Benchmarks that need real kernel drivers run in the lab's guests; the lab leaves its reports in a file.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { endWithProcess } from './core/leftovers.js'
import type { Report } from './core/report.js'
import { readReports } from './core/reports-file.js'

interface LabOptions {
  readonly folder: string
  readonly rounds: number
  readonly quick: boolean
}

export async function lab({ folder, rounds, quick }: LabOptions): Promise<readonly Report[]> {
  const runner = fileURLToPath(new URL('../../test/dist/lab/run.js', import.meta.url))
  const file = join(folder, 'lab.json')
  const args = ['bench', '--rounds', String(rounds), '--reports', file]
  // stdout is for what is judged.
  // Its guests end with it.
  const child = endWithProcess(
    spawn(process.execPath, [runner, ...args], { stdio: ['ignore', 2, 'inherit'] }),
  )
  const [status] = await once(child, 'exit')
  if (status === 0) return readReports(file).map((report) => ({ ...report, quick }))
  const failures = [`the lab's benchmark ended with ${status}`]
  const nothing = { tables: [], limits: [], comparisons: [], samples: [] }
  return [{ suite: 'lab', about: 'in guests', rounds, quick, ...nothing, failures }]
}
