// npm run bench: one suite after the other, never two at once.
import { tmpdir } from 'node:os'
import { type Builds, buildPrograms, oneBuild, top, twoBuilds } from './against/build.js'
import { CheckoutError, commitOf } from './against/checkout.js'
import { connections } from './connections.js'
import { estimate } from './core/cells.js'
import { documentOf } from './core/document.js'
import { exitOnSignals, TemporaryFolder } from './core/leftovers.js'
import { machine } from './core/machine.js'
import { duration, RunProgress } from './core/progress.js'
import type { Report } from './core/report.js'
import { textOf } from './core/text.js'
import { failed } from './core/verdict.js'
import { curves } from './curves.js'
import { lab } from './lab.js'
import { micro } from './micro.js'
import { nbd } from './nbd.js'
import { HELP, type Options, parseCommandLine, type SuiteName } from './options.js'
import { parameterServer } from './parameter-server.js'
import { ring } from './ring.js'
import { ringDefault } from './ring-default.js'
import { rpc } from './rpc.js'
import { plan, runSuite } from './run.js'
import type { Place, Run, Suite } from './suite.js'
import { verbs } from './verbs.js'

const MAKE: Readonly<Record<Exclude<SuiteName, 'lab'>, (place: Place) => Suite>> = {
  micro,
  verbs,
  ring,
  'ring-default': ringDefault,
  rpc,
  connections,
  'parameter-server': parameterServer,
  nbd,
  curves,
}

/** stdout is for results. */
const say = (line: string): void => console.error(`bench: ${line}`)

/** A wrong command line that only a look at the cells shows. */
class UsageError extends Error {}

async function bench(options: Options, folder: string): Promise<number> {
  const { suites, rounds, quick, json, only, against } = options
  const host = machine()
  const builds = against === undefined ? oneBuild() : await twoBuilds(against, suites.includes('verbs'), say)
  const what = { only, build: builds.ours, other: builds.other }
  const chosen = suites
    .map((name) => ({ name, suite: name === 'lab' ? undefined : MAKE[name]({ folder, quick }) }))
    .filter(({ suite }) => suite === undefined || plan(suite, what).length > 0)
  if (chosen.length === 0) throw new UsageError(`no cell of ${suites.join(', ')} matches ${only}`)
  const seconds = chosen.flatMap(({ suite }) => (suite ? [estimate(plan(suite, what), rounds)] : []))
  const expected = seconds.reduce((sum, one) => sum + one, 0)
  const run: Run = { ...what, rounds, quick, progress: new RunProgress(expected, { say }), say }
  announce(
    chosen.map(({ name }) => name),
    expected,
    run,
  )
  if (chosen.some(({ name }) => name === 'verbs'))
    buildPrograms({ programs: builds.ours.programs, packages: top, sources: top })

  const reports: Report[] = []
  for (const { suite } of chosen) {
    const some = suite === undefined ? await lab({ folder, rounds, quick }) : [await runSuite(suite, run)]
    if (!json) for (const line of some.flatMap(textOf)) console.log(line)
    reports.push(...some)
  }
  if (json) {
    const head = { machine: host, builds: described(builds) }
    console.log(JSON.stringify({ ...head, ...documentOf(reports) }, undefined, 2))
  }
  return reports.some(failed) ? 1 : 0
}

/** Announces the suites, the builds and the expected time. */
function announce(names: readonly SuiteName[], expected: number, { build, other, rounds }: Run): void {
  if (other !== undefined)
    say(`this: ${build.root}, ${commitOf(build.root)}; other: ${other.root}, ${commitOf(other.root)}`)
  const labs = names.includes('lab') ? '; and the lab, whose time depends on the host' : ''
  say(
    `${names.join(', ')}: ${rounds} ${rounds === 1 ? 'round' : 'rounds'}, about ${duration(expected)}${labs}`,
  )
}

const described = ({ ours, other, sources }: Builds) => ({
  this: { root: ours.root, commit: commitOf(ours.root) },
  ...(other && { other: { root: other.root, commit: commitOf(other.root), benchmarks: sources } }),
})

async function main(): Promise<number> {
  const line = parseCommandLine(process.argv.slice(2))
  if (line.kind === 'help') {
    process.stdout.write(HELP)
    return 0
  }
  if (line.kind === 'error') {
    say(line.message)
    return 2
  }
  exitOnSignals()
  using folder = new TemporaryFolder(tmpdir())
  try {
    return await bench(line.options, folder.path)
  } catch (error) {
    if (!(error instanceof CheckoutError || error instanceof UsageError)) throw error
    say(error.message)
    return 2
  }
}

process.exit(await main())
