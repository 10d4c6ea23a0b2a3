// docs/page-service/promises.md and SECURITY.md: each promise's section and each test that holds it are there, with the
// tier that runs it, and no page of the page service is left out of the first. Reads, and runs nothing.
// Usage: node scripts/checks/promises.mjs
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'

const top = resolve(import.meta.dirname, '../..')
const folder = join(top, 'docs/page-service')
const promises = join(folder, 'promises.md')
const tables = [promises, join(top, 'SECURITY.md')]

/** The test of that name, in whatever folder below. */
const below = (folder, name, end = '.test.ts') => {
  const file = `${name}${end}`
  const found = readdirSync(join(top, folder), { recursive: true }).find((each) =>
    `/${each}`.endsWith(`/${file}`),
  )
  return join(folder, found ?? file)
}

/** Where a test of each kind is, and the tier that runs it. */
const KINDS = {
  client: (name) => [below('packages/nbd-client/test', name), 'npm test'],
  volume: (name) => [below('packages/remote-volume/test', name), 'npm test'],
  server: (name) => [below('packages/swap-server/test', name), 'npm test'],
  kit: (name) => [below('packages/operator-kit/test', name), 'npm test'],
  ring: (name) => [below('packages/ring-transport/test', name), 'npm test'],
  verbs: (name) => [below('packages/verbs/test', name), 'npm test'],
  e2e: (name) => [below('test/e2e', name), 'npm test'],
  guest: (name) => {
    const file = below('test/lab/guest-tests', name)
    return [file, file.includes('/drivers/') ? 'npm test' : '.ci/run']
  },
  native: (name) => {
    const [folder, ...rest] = name.split('_')
    return [below(`test/native/${folder}`, rest.join('_'), '_stress.cc'), '.ci/run']
  },
  fuzz: (name) => {
    const files = ['cc', 'ts'].map((end) => below('test/fuzz', name, `_fuzz.${end}`))
    return [files.find((file) => existsSync(join(top, file))) ?? files[0], '.ci/run']
  },
  trial: (name) => [`test/lab/trials/${name.split(' ')[0]}.ts`, undefined],
}

const wrong = []
/** @typedef {{ table: string, line: number }} Place */
const say = ({ table, line }, what) => wrong.push(`${relative(top, table)}:${line}: ${what}`)
const text = (file) => readFileSync(file, 'utf8')

/** As GitHub names a heading. */
const anchorOf = (heading) =>
  heading
    .replace(/^#+ /, '')
    .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_ -]/gu, '')
    .replaceAll(' ', '-')

function checkLink(place, target) {
  const [path, anchor] = target.split('#')
  const file = path === '' ? place.table : resolve(dirname(place.table), path)
  if (!existsSync(file)) return say(place, `there is no ${path}`)
  const headings = text(file).match(/^#+ .*$/gm) ?? []
  if (anchor !== undefined && !headings.some((each) => anchorOf(each) === anchor))
    say(place, `${path} has no section #${anchor}`)
}

/** `kind name` "a test" "another" */
function checkTest(place, reference, tier) {
  const [, kind, name, rest] = /^`(\w+) ([^`]+)`(.*)$/.exec(reference) ?? []
  const test = KINDS[kind]?.(name)
  if (test === undefined) return say(place, `"${reference}" names no test`)
  const [file, runs] = test
  if (!existsSync(join(top, file))) return say(place, `there is no ${file}`)
  const needed = name.endsWith('.soak') ? 'soak' : runs
  if (needed !== undefined && needed !== tier) say(place, `${file} is run by ${needed}, not by ${tier}`)
  for (const [, title] of rest.matchAll(/"([^"]+)"/g))
    if (!text(join(top, file)).includes(title)) say(place, `${file} has no "${title}"`)
}

for (const table of tables)
  for (const [at, line] of text(table).split('\n').entries()) {
    const place = { table, line: at + 1 }
    for (const [, target] of line.matchAll(/\]\(([^)\s]+)\)/g))
      if (!target.startsWith('https:')) checkLink(place, target)
    const [, promise, tests, tier] = /^\| (.+) \| (.+) \| (npm test|\.ci\/run|soak) \|$/.exec(line) ?? []
    if (promise !== undefined) for (const each of tests.split(/; (?=`)/)) checkTest(place, each, tier)
  }
const sections = text(promises).split('\n')
for (const page of readdirSync(folder))
  if (
    page !== 'promises.md' &&
    !sections.some((line) => line.startsWith('## [') && line.endsWith(`](${page})`))
  )
    say({ table: promises, line: 1 }, `no section is about ${page}`)

for (const each of wrong) console.error(each)
process.exitCode = wrong.length === 0 ? 0 : 1
