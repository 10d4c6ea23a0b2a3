// Proves that the tests see faults: puts one after the other into a copy of the checkout, and runs the tests that
// should fail then. test/mutation/README.md
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { loadMutations, mistakes, mutated } from '../test/mutation/list.mjs'
import { namedTest } from '../test/mutation/named-test.mjs'
import { keyOf, proofKey, Results, writeTable } from '../test/mutation/results.mjs'
import { Tree } from '../test/mutation/tree.mjs'

const HELP = `Usage: node scripts/mutate.mjs [--only PATTERN] [--survivors] [--fresh]
       node scripts/mutate.mjs --check | --table | --list

Puts each mutation of test/mutation/mutations into build/mutation/tree, a copy of the checkout, and runs the tests
that it names, until one fails. First all of these tests must pass there as it is. Results are kept in
test-results/mutation.json: what has one for the same sources and tests is not run again.

  --check         each mutation stands in its file exactly once, and its tests exist; runs nothing
  --only PATTERN  those whose area, name or file matches the regular expression
  --survivors     what its own tests do not catch gets npm test, and then .ci/run
  --fresh         forget earlier results
  --table         write the table of test/mutation/README.md anew from the results
  --list          print the chosen mutations and their tests
  --help          print this

Status: 0 all that was chosen are caught, 1 something is not, or is no good.`

const top = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(top, 'build', 'mutation')
const TIERS = [
  { tier: 'npm test', command: ['npm', 'test'] },
  { tier: '.ci/run', command: ['bash', '.ci/run'] },
]
const BUILD_SECONDS = 3_600
const TIER_SECONDS = 3 * 3_600
/** A test that takes longer than this, and ten times what it takes without a fault, counts as one that hangs. */
const PATIENCE_SECONDS = 60
/** For a test that has never been seen to pass: above the deadlines of each kind of test. */
const FIRST_SECONDS = 1_200

/** Lines in which a test says what it saw. */
const TELLING =
  /failed:|\bFAIL\b|Error:|Sanitizer|runtime error|\*\*\*(Failed|Timeout|Exception)|SIG[A-Z]{3,}|libFuzzer/

const { values: options } = parseArgs({
  options: {
    check: { type: 'boolean' },
    only: { type: 'string', default: '' },
    survivors: { type: 'boolean' },
    fresh: { type: 'boolean', default: false },
    table: { type: 'boolean' },
    list: { type: 'boolean' },
    help: { type: 'boolean' },
  },
})

const all = await loadMutations()

if (options.help) console.log(HELP)
else if (options.check) check()
else if (options.table) writeTable(all, new Results(join(top, 'test-results', 'mutation.json'), false))
else if (options.list) for (const each of chosen()) console.log(`${each.name}: ${each.tests.join(', ')}`)
else process.exitCode = await mutate()

function check() {
  const wrong = mistakes(all, top)
  for (const line of wrong) console.error(`mutate: ${line}`)
  if (wrong.length > 0) process.exitCode = 1
  else console.log(`mutate: ${all.length} mutations, each once in its file`)
}

function chosen() {
  const pattern = new RegExp(options.only)
  return all.filter(({ area, name, file }) => [area, name, file].some((text) => pattern.test(text)))
}

/** @returns {Promise<number>} the status of the process */
async function mutate() {
  mkdirSync(folder, { recursive: true })
  const lock = join(folder, 'lock')
  if (!takeLock(lock)) return 1
  const tree = new Tree(top, folder)
  for (const signal of ['SIGINT', 'SIGTERM'])
    process.once(signal, () => {
      tree.end()
      rmSync(lock, { force: true })
      process.exit(130)
    })
  try {
    tree.update()
    return await mutateIn(tree, new Results(join(top, 'test-results', 'mutation.json'), options.fresh))
  } finally {
    rmSync(lock, { force: true })
  }
}

/** One run at a time has the copy. */
function takeLock(lock) {
  try {
    writeFileSync(lock, String(process.pid), { flag: 'wx' })
    return true
  } catch {
    const other = Number(readFileSync(lock, 'utf8'))
    try {
      process.kill(other, 0)
      console.error(`mutate: process ${other} has ${folder}`)
      return false
    } catch {
      writeFileSync(lock, String(process.pid))
      return true
    }
  }
}

/** @param {Tree} tree @param {Results} results */
async function mutateIn(tree, results) {
  const mutations = chosen()
  // From here on the copy is what counts, whatever becomes of the checkout.
  const due = mutations.filter((each) => {
    const known = results.get(each.name)
    return known?.outcome !== 'caught' || known.key !== keyOf(each, tree.tree)
  })
  console.log(`mutate: ${mutations.length} mutations, ${mutations.length - due.length} of them caught before`)
  const proved = await prove(tree, results, new Set(due.flatMap(({ tests }) => tests)))
  for (const [i, mutation] of due.entries()) {
    const result = await tryOne(tree, mutation, proved)
    results.set(mutation.name, { key: keyOf(mutation, tree.tree), ...result })
    const { outcome, by = '', seconds, how = '' } = result
    console.log(
      `mutate: ${i + 1}/${due.length} ${mutation.name}: ${outcome} ${by} (${Math.round(seconds)} s)`,
    )
    for (const line of how.split('\n').filter(Boolean)) console.log(`          ${line}`)
  }
  return report(mutations, results)
}

/**
 * Tests that pass without a fault, with the seconds that they take; without this a failure would mean nothing.
 * @returns {Promise<Map<string, number>>}
 */
async function prove(tree, results, names) {
  const sources = productDigest(tree)
  const proved = new Map()
  for (const [i, name] of [...names].entries()) {
    const test = namedTest(name, tree.tree)
    const key = proofKey(test, sources, tree.tree)
    let seconds = results.proved(key)
    for (let attempt = 0; seconds === undefined && attempt < 2; attempt++) {
      const failed = await build(tree, test)
      if (failed !== undefined) {
        console.error(`mutate: without a fault: ${name} cannot be built\n${tail(failed, 30)}`)
        break
      }
      const ended = await tree.run(test.run, FIRST_SECONDS)
      if (passed(ended)) seconds = ended.seconds
      else console.error(`mutate: without a fault: ${name} fails\n${tail(ended.output, 30)}`)
    }
    if (seconds === undefined) continue
    results.prove(key, seconds)
    proved.set(name, seconds)
    console.log(`mutate: proved ${i + 1}/${names.size} ${name} (${Math.round(seconds)} s)`)
  }
  return proved
}

/** The digest of everything that the tests test. */
function productDigest(tree) {
  const { stdout } = spawnSync('git', ['ls-files', '-co', '--exclude-standard', 'packages'], {
    cwd: top,
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  })
  const hash = createHash('sha256')
  const files = stdout.split('\n').filter((file) => /^packages\/[^/]+\/(native|src|proto)\//.test(file))
  for (const file of files.sort()) {
    try {
      hash.update(file).update(tree.read(file))
    } catch {
      // Not there any more.
    }
  }
  return hash.digest('hex')
}

async function tryOne(tree, mutation, proved) {
  const started = performance.now()
  const text = tree.read(mutation.file)
  const done = (result) => ({ ...result, seconds: (performance.now() - started) / 1000 })
  const usable = mutation.tests.filter((test) => proved.has(test))
  if (usable.length === 0)
    return done({ outcome: 'error', how: 'none of its tests passes without the fault' })
  try {
    tree.write(mutation.file, mutated(text, mutation))
    for (const name of usable) {
      const test = namedTest(name, tree.tree)
      const failed = await build(tree, test)
      if (failed !== undefined)
        return done({ outcome: 'error', how: `it does not compile\n${tail(failed, 12)}` })
      const limit = PATIENCE_SECONDS + 10 * proved.get(name)
      const ended = await tree.run(test.run, limit)
      keepLog(mutation, name, ended)
      if (!passed(ended))
        return done({ outcome: 'caught', by: name, tier: test.tier, how: seen(ended, limit) })
    }
    if (options.survivors) return done(await tryTiers(tree, mutation))
    return done({ outcome: 'survived' })
  } catch (failure) {
    return done({ outcome: 'error', how: failure.message })
  } finally {
    tree.write(mutation.file, text)
  }
}

async function tryTiers(tree, mutation) {
  tree.makeRepository()
  // That it looks unlike the rest would be seen first, and says nothing of the tests.
  await tree.run(['bash', 'scripts/format.sh'], BUILD_SECONDS)
  for (const { tier, command } of TIERS) {
    const ended = await tree.run(command, TIER_SECONDS)
    keepLog(mutation, tier, ended)
    if (!passed(ended)) return { outcome: 'caught', by: tier, tier, how: seen(ended, TIER_SECONDS) }
  }
  return { outcome: 'survived' }
}

/** @returns {Promise<string | undefined>} what the compiler said, when it failed */
async function build(tree, test) {
  for (const step of test.build) {
    const ended = await tree.run(step, BUILD_SECONDS)
    if (!passed(ended)) return ended.output
  }
  return undefined
}

function passed({ status, late }) {
  return status === 0 && !late
}

function seen({ output, late }, limit) {
  if (late) return `it did not end within ${Math.round(limit)} s`
  const lines = output.split('\n').map((line) => line.trim().slice(0, 160))
  return [...new Set(lines.filter((line) => TELLING.test(line)))].slice(0, 3).join('\n')
}

function tail(text, lines) {
  return text.trimEnd().split('\n').slice(-lines).join('\n')
}

function keepLog({ name }, test, { output }) {
  const logs = join(folder, 'logs')
  mkdirSync(logs, { recursive: true })
  writeFileSync(join(logs, `${name}, ${test.replaceAll('/', '_')}.log`), output)
}

function report(mutations, results) {
  const rows = mutations.map(({ name }) => ({ name, ...results.get(name) }))
  const width = Math.max(...rows.map(({ name }) => name.length))
  console.log()
  for (const { name, outcome, by = '', tier = '', seconds } of rows)
    console.log(
      `${name.padEnd(width)}  ${outcome === 'caught' ? by : outcome}  ${tier}  ${Math.round(seconds)} s`,
    )
  const open = rows.filter(({ outcome }) => outcome !== 'caught')
  console.log(`\nmutate: ${rows.length - open.length} of ${rows.length} caught`)
  for (const { name, outcome } of open) console.log(`mutate: ${outcome}: ${name}`)
  return open.length === 0 ? 0 : 1
}
