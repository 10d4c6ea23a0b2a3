// Sums the JSON reports of vitest in a folder and prints "N passed, N failed". A skipped test or a
// report that is missing counts as failed: CI must run everything.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const folder = process.argv[2]
const sum = { passed: 0, failed: 0 }
const reports = readdirSync(folder).filter((name) => name.endsWith('.json'))
for (const name of reports) {
  const report = JSON.parse(readFileSync(join(folder, name), 'utf8'))
  sum.passed += report.numPassedTests
  sum.failed += report.numTotalTests - report.numPassedTests
  // A file that could not be loaded has no tests to count.
  sum.failed += report.testResults.filter(
    (file) => file.status === 'failed' && file.assertionResults.length === 0,
  ).length
}
console.log(`${sum.passed} passed, ${sum.failed} failed`)
process.exit(sum.failed === 0 && sum.passed > 0 ? 0 : 1)
