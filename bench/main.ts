// npm run bench -- [suite…] [--json]: one suite after the other, never two at once. With --json, verbs
// prints JSON in place of its tables.
import { lab } from './lab.js'
import { nbd } from './nbd.js'
import { ring } from './ring.js'
import { verbs } from './verbs.js'

const SUITES: Readonly<Record<string, (options: { json: boolean }) => Promise<void>>> = {
  verbs,
  ring,
  nbd,
  lab,
}

const json = process.argv.includes('--json')
const wanted = process.argv.slice(2).filter((argument) => argument !== '--json')
for (const name of wanted.length === 0 ? Object.keys(SUITES) : wanted) {
  const suite = SUITES[name]
  if (suite === undefined) {
    console.error(`bench: unknown suite "${name}"; known: ${Object.keys(SUITES).join(', ')}`)
    process.exit(2)
  }
  if (!json) console.log(`bench: ${name}`)
  await suite({ json })
}
process.exit(0)
