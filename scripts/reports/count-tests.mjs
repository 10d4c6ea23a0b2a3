// Sums the reports of scripts/reports/results-reporter.mjs and of ctest (JUnit), given as files or folders of them: a line for
// each project, and each conformance case whose verbs the project's provider does not have, by name; then each test that
// failed, with why; then "N passed, N failed". A case without its verbs has passed: it saw them refused as documented.
// A skipped test or a report that is missing counts as failed: CI must run everything.
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { basename, join, relative } from 'node:path'

const reports = process.argv
  .slice(2)
  .flatMap((path) =>
    statSync(path).isDirectory() ? readdirSync(path).map((name) => join(path, name)) : [path],
  )
  .filter((path) => path.endsWith('.json') || path.endsWith('.xml'))

const projects = new Map()
const failures = []
function countsOf(name) {
  const counts = projects.get(name) ?? { passed: 0, failed: 0, unsupported: [] }
  projects.set(name, counts)
  return counts
}

/** Of ctest each test is a program's run, whose output its log has shown. */
function countNative(path) {
  const counts = countsOf(basename(path, '.xml'))
  for (const [, name, status] of readFileSync(path, 'utf8').matchAll(
    /<testcase name="([^"]+)".*?status="([^"]+)"/gs,
  )) {
    if (status === 'run') {
      counts.passed++
      continue
    }
    counts.failed++
    failures.push(`${basename(path, '.xml')}: ${name}: ${status}`)
  }
}

for (const path of reports) {
  if (path.endsWith('.xml')) {
    countNative(path)
    continue
  }
  const run = basename(path, '.json')
  for (const file of JSON.parse(readFileSync(path, 'utf8')).testResults) {
    // A file that could not be loaded, or a hook in it.
    if (file.status === 'failed' && !file.assertionResults.some(({ status }) => status === 'failed')) {
      countsOf(run).failed++
      failures.push(`${run}, ${relative('.', file.name)}: ${file.message || 'a hook failed'}`)
    }
    for (const { status, fullName, meta, failureMessages } of file.assertionResults) {
      const project = meta.project ? `${run}, ${meta.project}` : run
      const counts = countsOf(project)
      if (status === 'passed') counts.passed++
      else {
        counts.failed++
        const why = failureMessages.length > 0 ? failureMessages.join('\n') : status
        failures.push(`${project}, ${relative('.', file.name)}: ${fullName}\n${why}`)
      }
      if (meta.unsupported !== undefined) counts.unsupported.push(`${fullName}: ${meta.unsupported}`)
    }
  }
}

const sum = { passed: 0, failed: 0 }
for (const [name, { passed, failed, unsupported }] of projects) {
  const without = unsupported.length > 0 ? `, ${unsupported.length} of them unsupported there:` : ''
  console.log(`${name}: ${passed} passed, ${failed} failed${without}`)
  for (const line of unsupported) console.log(`  ${line}`)
  sum.passed += passed
  sum.failed += failed
}
for (const failure of failures) console.log(`FAILED ${failure.replaceAll('\n', '\n  ')}`)
console.log(`${sum.passed} passed, ${sum.failed} failed`)
process.exit(sum.failed === 0 && sum.passed > 0 ? 0 : 1)
