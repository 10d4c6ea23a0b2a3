// node judge.js FILE [--json]: judges and prints the reports that the lab has left in a file, as npm run bench would.
import { documentOf } from './core/document.js'
import { readReports } from './core/reports-file.js'
import { textOf } from './core/text.js'
import { failed } from './core/verdict.js'

const [file, json] = process.argv.slice(2)
if (file === undefined) {
  console.error('usage: node judge.js FILE [--json]')
  process.exit(2)
}
const reports = readReports(file)
if (json === '--json') console.log(JSON.stringify(documentOf(reports), undefined, 2))
else for (const line of reports.flatMap(textOf)) console.log(line)
process.exitCode = reports.some(failed) ? 1 : 0
