// docs/page-service/promises.md: each promise's section and each test that holds it are there, with the tier that runs
// it, and no page of the page service is left out. Reads, and runs nothing.
// Usage: node scripts/promises.mjs
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'

const top = resolve(import.meta.dirname, '..')
const folder = join(top, 'docs/page-service')
const table = join(folder, 'promises.md')

/** Where a test of each kind is, and the tier that runs it. */
const KINDS = {
  client: (name) => [`packages/nbd-client/test/${name}.test.ts`, 'npm test'],
  server: (name) => [`packages/swap-server/test/${name}.test.ts`, 'npm test'],
  e2e: (name) => [`test/e2e/${name}.test.ts`, 'npm test'],
  guest: (name) => [
    `test/lab/guest-tests/${name}.test.ts`,
    name.startsWith('drivers/') ? 'npm test' : '.ci/run',
  ],
  native: (name) => [`test/native/${name.replace('_', '/')}_stress.cc`, '.ci/run'],
  trial: (name) => [`test/lab/${name.split(' ')[0]}.ts`, undefined],
}

const wrong = []
const say = (line, what) => wrong.push(`${relative(top, table)}:${line}: ${what}`)
const text = (file) => readFileSync(file, 'utf8')

/** As GitHub names a heading. */
const anchorOf = (heading) =>
  heading
    .replace(/^#+ /, '')
    .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_ -]/gu, '')
    .replaceAll(' ', '-')

function checkLink(line, target) {
  const [path, anchor] = target.split('#')
  const file = path === '' ? table : resolve(dirname(table), path)
  if (!existsSync(file)) return say(line, `there is no ${path}`)
  const headings = text(file).match(/^#+ .*$/gm) ?? []
  if (anchor !== undefined && !headings.some((each) => anchorOf(each) === anchor))
    say(line, `${path} has no section #${anchor}`)
}

/** `kind name` "a test" "another" */
function checkTest(line, reference, tier) {
  const [, kind, name, rest] = /^`(\w+) ([^`]+)`(.*)$/.exec(reference) ?? []
  const place = KINDS[kind]?.(name)
  if (place === undefined) return say(line, `"${reference}" names no test`)
  const [file, runs] = place
  if (!existsSync(join(top, file))) return say(line, `there is no ${file}`)
  if (runs !== undefined && runs !== tier) say(line, `${file} is run by ${runs}, not by ${tier}`)
  for (const [, title] of rest.matchAll(/"([^"]+)"/g))
    if (!text(join(top, file)).includes(title)) say(line, `${file} has no "${title}"`)
}

const lines = text(table).split('\n')
for (const [at, line] of lines.entries()) {
  for (const [, target] of line.matchAll(/\]\(([^)\s]+)\)/g)) checkLink(at + 1, target)
  const [, promise, tests, tier] = /^\| (.+) \| (.+) \| (npm test|\.ci\/run|soak) \|$/.exec(line) ?? []
  if (promise !== undefined) for (const each of tests.split('; ')) checkTest(at + 1, each, tier)
}
for (const page of readdirSync(folder))
  if (page !== 'promises.md' && !lines.some((line) => line.startsWith('## [') && line.endsWith(`](${page})`)))
    say(1, `no section is about ${page}`)

for (const each of wrong) console.error(each)
process.exitCode = wrong.length === 0 ? 0 : 1
