// Sums the reports of scripts/results-reporter.mjs, given as files or folders of them: a line for each
// project, and each conformance case whose verbs the project's provider does not have, by name; then
// "N passed, N failed". Such a case has passed: it saw the verbs refused as documented. A skipped test or
// a report that is missing counts as failed: CI must run everything.
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'

const reports = process.argv
  .slice(2)
  .flatMap((path) =>
    statSync(path).isDirectory() ? readdirSync(path).map((name) => join(path, name)) : [path],
  )
  .filter((path) => path.endsWith('.json'))

const projects = new Map()
function countsOf(name) {
  const counts = projects.get(name) ?? { passed: 0, failed: 0, unsupported: [] }
  projects.set(name, counts)
  return counts
}

for (const path of reports) {
  const run = basename(path, '.json')
  for (const file of JSON.parse(readFileSync(path, 'utf8')).testResults) {
    // A file that could not be loaded has no tests to count.
    if (file.status === 'failed' && file.assertionResults.length === 0) countsOf(run).failed++
    for (const { status, fullName, meta } of file.assertionResults) {
      const counts = countsOf(meta.project ? `${run}, ${meta.project}` : run)
      if (status === 'passed') counts.passed++
      else counts.failed++
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
console.log(`${sum.passed} passed, ${sum.failed} failed`)
process.exit(sum.failed === 0 && sum.passed > 0 ? 0 : 1)
