// Runs a suite, on one build or on two.
import { compareBuilds } from './against/compare.js'
import { pairs, select } from './core/cells.js'
import type { Report, Value } from './core/report.js'
import { type Group, measureRounds } from './core/rounds.js'
import type { Run, Suite } from './suite.js'

/** What of a suite is measured: the cells that are asked for, with their peers or on two builds. */
export function plan(
  suite: Suite,
  { build, other, only }: Pick<Run, 'build' | 'other' | 'only'>,
): readonly Group[] {
  const groups = select(suite.groups(build), only)
  return other === undefined ? groups : pairs(groups, suite.groups(other))
}

/** Whatever stops the suite is a failure in its report, so that those after it still run. */
export async function runSuite(suite: Suite, run: Run): Promise<Report> {
  const { rounds, quick } = run
  const head = { suite: suite.name, about: suite.about, rounds, quick }
  try {
    const said = await measure(suite, run)
    return withoutEmpty({ ...head, ...said, failures: [...said.failures, ...(await check(suite))] })
  } catch (failure) {
    const failures = [messageOf(failure)]
    return { ...head, tables: [], limits: [], comparisons: [], samples: [], failures }
  } finally {
    await suite.close?.()
  }
}

/** A check that fails is one more failure: the figures took the whole run, and people may still read them. */
async function check(suite: Suite): Promise<readonly string[]> {
  try {
    return (await suite.check?.()) ?? []
  } catch (failure) {
    return [`the figures could not be checked: ${messageOf(failure)}`]
  }
}

const messageOf = (failure: unknown) => (failure instanceof Error ? failure.message : String(failure))

async function measure(suite: Suite, run: Run) {
  const groups = plan(suite, run)
  if (run.other !== undefined) return { tables: [], limits: [], ...(await compareBuilds(suite, groups, run)) }
  const samples = await run.progress.during(suite.name, run.rounds, (progress) =>
    measureRounds(groups, run.rounds, progress),
  )
  return { ...suite.report(samples), comparisons: [], samples: samples.series, failures: samples.failures }
}

/** Suites speak of all cells that they have; with --only some were not measured. */
function withoutEmpty(report: Report): Report {
  const any = (rounds: readonly number[]) => rounds.some(Number.isFinite)
  const measured = (value: Value) => typeof value === 'object' && any(value)
  const tables = report.tables.map((table) => ({
    ...table,
    rows: table.rows.filter((row) => row.some(measured)),
  }))
  return {
    ...report,
    tables: tables.filter(({ rows }) => rows.length > 0),
    limits: report.limits.filter(({ rounds }) => any(rounds)),
  }
}
