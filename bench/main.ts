// npm run bench -- [suite…] [--json] [--quick]: one suite after the other, never two at once. With --json,
// all but lab print JSON in place of their tables; with --quick, all but verbs and lab are
// short and rough.
import { lab } from './lab.js'
import { nbd } from './nbd.js'
import { parameterServer } from './parameter-server.js'
import { ring } from './ring.js'
import { verbs } from './verbs.js'

const SUITES: Readonly<Record<string, (options: { json: boolean; quick: boolean }) => Promise<void>>> = {
  verbs,
  ring,
  'parameter-server': parameterServer,
  nbd,
  lab,
}

const json = process.argv.includes('--json')
const quick = process.argv.includes('--quick')
const wanted = process.argv.slice(2).filter((argument) => argument !== '--json' && argument !== '--quick')
for (const name of wanted.length === 0 ? Object.keys(SUITES) : wanted) {
  const suite = SUITES[name]
  if (suite === undefined) {
    console.error(`bench: unknown suite "${name}"; known: ${Object.keys(SUITES).join(', ')}`)
    process.exit(2)
  }
  if (!json) console.log(`bench: ${name}`)
  await suite({ json, quick })
}
process.exit(0)
