// npm run bench -- [suite…]: one suite after the other, never two at once.
import { lab } from './lab.js'
import { nbd } from './nbd.js'
import { ring } from './ring.js'

const SUITES: Readonly<Record<string, () => Promise<void>>> = { ring, nbd, lab }

const wanted = process.argv.slice(2)
for (const name of wanted.length === 0 ? Object.keys(SUITES) : wanted) {
  const suite = SUITES[name]
  if (suite === undefined) {
    console.error(`bench: unknown suite "${name}"; known: ${Object.keys(SUITES).join(', ')}`)
    process.exit(2)
  }
  console.log(`bench: ${name}`)
  await suite()
}
process.exit(0)
