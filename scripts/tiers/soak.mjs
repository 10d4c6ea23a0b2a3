// npm run soak: everything of .ci/run with more repetition, and the long trials, seed after seed, for the
// given time. Continues after an interruption. Prints a table at the end, and writes docs/soak.md.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { executePart, top } from './run.mjs'
import { writeSoakReport } from './soak-report.mjs'

const usage = `usage: npm run soak [-- OPTION…]

  --minutes N   stop beginning new parts after N minutes (default 120); the set-up is not counted
  --seed S      the first seed of the trials (default: the day's number); the next round takes the next one
  --only TEXT   only parts whose name holds TEXT; may be repeated
  --fresh       begin anew where an interrupted soak would go on
  --list        print the parts of a round and end

A soak that was interrupted goes on with the part that it was in, as long as the commit is the same. Its logs are in
build/soak/logs. It ends with status 1 when a part failed.`

const folder = join(top, 'build', 'soak')
const stateFile = join(folder, 'state.json')
/** The length of a trial under faults in a soak of at least two hours; shorter soaks give each its share. */
const LONGEST_TRIAL_S = 300
const SHORTEST_TRIAL_S = 60
/** The trials' share of the time: there are fifteen in a round. */
const TRIALS_SHARE = 0.6

/** @returns {import('./run.mjs').Part[]} */
function round(number, seed, minutes) {
  const trials = Math.round(
    Math.min(LONGEST_TRIAL_S, Math.max(SHORTEST_TRIAL_S, (minutes * 60 * TRIALS_SHARE) / 15)),
  )
  const effort = minutes >= 120 ? 10 : 4
  const env = { RDMAKIT_EFFORT: String(effort), RDMAKIT_TIER: 'soak', RDMAKIT_SEED: String(seed) }
  const script = (name, ...words) => ['bash', `scripts/${name}.sh`, ...words]
  const kill = (name, ...words) => ({
    name: `kill-anything, ${name}`,
    command: script('lab', 'kill-anything', '--seconds', String(trials), '--seed', String(seed), ...words),
    budget: trials + 300,
  })
  const storm = (name, ...words) => ({
    name: `memory-storm, ${name}`,
    command: script('lab', 'memory-storm', '--seconds', String(trials), ...words),
    budget: trials + 200,
  })
  const restarts = Math.max(2, Math.round(trials / 60))
  const restart = (name, ...words) => ({
    name: `restart-storm, ${name}`,
    command: script('lab', 'restart-storm', '--restarts', String(restarts), ...words),
    budget: trials + 400,
  })
  const backup = ['--replicas', '1', '--backup']
  const alone = ['--replicas', '1']
  const parts = [
    kill('two replicas, nbd'),
    kill('a backup, ublk', ...backup, '--ublk'),
    storm('nbd'),
    storm('ublk', '--ublk'),
    storm('nbd over iwarp', '--iwarp', '--flood'),
    storm('ublk over iwarp', '--iwarp', '--ublk', '--flood'),
    { name: 'native, TSan', command: script('native', 'tsan'), env, budget: 170 * effort },
    { name: 'native, ASan and UBSan', command: script('native', 'asan'), env, budget: 120 * effort },
    { name: 'addons, ASan and UBSan', command: ['node', 'scripts/addons-asan.mjs'], budget: 900 },
    { name: 'unit, conformance, end to end', command: script('unit'), env, budget: 300 * effort },
    {
      name: 'fuzz',
      command: script('fuzz', String(Math.round(trials / 2))),
      budget: 2 * trials + 100,
    },
    restart('nbd'),
    restart('ublk', '--ublk'),
    restart('nbd over iwarp', '--iwarp'),
    restart('ublk over iwarp', '--iwarp', '--ublk'),
    kill('one replica, nbd', ...alone),
    kill('two replicas, ublk', '--ublk'),
    kill('a backup, nbd', ...backup),
    kill('one replica, ublk', ...alone, '--ublk'),
    {
      name: 'lab: kernel, conformance',
      command: script('lab', 'kernel'),
      env: { ...env, RDMAKIT_EFFORT: '2' },
      budget: 1200,
    },
    {
      name: 'breaks of a link',
      command: script('unit', 'packages/nbd-client/test/volume/breaks.test.ts'),
      // Some more than a thousand, times the effort.
      env: { ...env, RDMAKIT_EFFORT: String(3.5 * (minutes >= 120 ? 48 : effort)) },
      budget: 60 * (minutes >= 120 ? 48 : effort),
    },
    { name: 'systemd', command: script('lab', 'systemd'), budget: 1000 },
    { name: 'native, plain', command: script('native', 'plain'), env, budget: 60 * effort },
  ]
  // Parts for which one run is enough.
  if (number === 0) {
    const nodes = ['20.19', '22', '24', 'newest']
    parts.push({
      name: 'verbs and ring on Node 20.19, 22, 24 and the newest',
      command: ['node', 'scripts/node/on-node.mjs', ...nodes],
      env,
      budget: 200 * effort,
    })
    const systems = ['bullseye', 'bookworm', 'trixie']
    parts.push({
      name: 'packages: from tarballs, on Debian 11, 12 and 13',
      command: [
        ...['node', 'scripts/packages/gate.mjs', '--no-lint'],
        ...nodes.flatMap((version) => ['--node', version]),
        ...systems.flatMap((suite) => ['--system', suite]),
      ],
      budget: 400,
    })
    parts.push({
      name: 'packages: for 64-bit ARM, emulated',
      command: ['node', 'scripts/packages/gate.mjs', '--no-lint', '--emulate'],
      budget: 400,
    })
    parts.push({ name: 'the README in a fresh clone', command: script('readme'), budget: 900 })
    parts.push({ name: 'native, each file by itself', command: script('native', 'files'), budget: 400 })
    parts.push({ name: 'clang-tidy', command: script('tidy', 'all'), budget: 600 })
  }
  return parts.map((part) => ({ ...part, seed, hang: 3 * part.budget }))
}

function options() {
  try {
    return parseArgs({
      options: {
        minutes: { type: 'string', default: '120' },
        seed: { type: 'string' },
        only: { type: 'string', multiple: true },
        fresh: { type: 'boolean' },
        list: { type: 'boolean' },
        help: { type: 'boolean', short: 'h' },
      },
    }).values
  } catch (error) {
    fail(error.message)
  }
}

function fail(why) {
  console.error(`soak: ${why}\n\n${usage}`)
  process.exit(2)
}

function wholeNumber(text, name) {
  const number = Number(text)
  if (!Number.isSafeInteger(number) || number < 1)
    fail(`--${name} is a whole number from 1 on, not "${text}"`)
  return number
}

const git = (...words) => spawnSync('git', words, { cwd: top, encoding: 'utf8' }).stdout.trim()

/** The commit, and whether the checkout differs from it. */
function state() {
  return { commit: git('rev-parse', '--short=12', 'HEAD'), changed: git('status', '--porcelain') !== '' }
}

/** What an interrupted soak of this commit has done so far, or a new one. */
function soakToDo({ seed, minutes, fresh }) {
  const now = state()
  if (!fresh && existsSync(stateFile)) {
    const kept = JSON.parse(readFileSync(stateFile, 'utf8'))
    const same = kept.commit === now.commit && (seed === undefined || kept.seed === seed)
    if (same && !kept.done) {
      console.log(`soak: goes on with seed ${kept.seed} after ${kept.ran.length} parts`)
      return { ...kept, minutes }
    }
  }
  rmSync(folder, { recursive: true, force: true })
  const today = Math.floor(Date.now() / 86_400_000)
  return { ...now, seed: seed ?? today, minutes, began: new Date().toISOString(), ran: [], done: false }
}

function keep(soak) {
  mkdirSync(folder, { recursive: true })
  writeFileSync(stateFile, JSON.stringify(soak, undefined, 2))
}

/** The JSON that a trial of the lab prints of what it saw. */
const seen = (output) =>
  [...output.matchAll(/^lab: (\{.*\})$/gm)].flatMap(([, text]) => {
    try {
      return [JSON.parse(text)]
    } catch {
      return []
    }
  })

const { minutes: minutesText, seed: seedText, only, fresh, list, help } = options()
if (help) {
  console.log(usage)
  process.exit(0)
}
const minutes = wholeNumber(minutesText, 'minutes')
const seed = seedText === undefined ? undefined : wholeNumber(seedText, 'seed')
const chosen = ({ name }) => only === undefined || only.some((text) => name.includes(text))
if (!round(0, 1, minutes).some(chosen)) fail(`no part is called ${only.join(' or ')}; --list prints them`)
if (list) {
  for (const { name, command } of round(0, seed ?? 1, minutes)) console.log(`${name}: ${command.join(' ')}`)
  process.exit(0)
}

const groups = ['build', 'test', 'lab', 'packages']
const setUp = spawnSync('bash', ['scripts/setup.sh', ...groups], { cwd: top, stdio: 'inherit' })
if (setUp.status !== 0) process.exit(1)
const soak = soakToDo({ seed, minutes, fresh })
keep(soak)
mkdirSync(join(folder, 'logs'), { recursive: true })
const spent = () => soak.ran.reduce((sum, part) => sum + part.seconds, 0)

/** A round in which nothing held would only be repeated. */
const allFailed = (number) => {
  const those = soak.ran.filter((part) => part.seed === soak.seed + number)
  return those.length > 0 && those.every(({ status }) => status !== 0)
}

for (let number = 0; spent() < minutes * 60 && !(number > 0 && allFailed(number - 1)); number++) {
  for (const part of round(number, soak.seed + number, minutes).filter(chosen)) {
    if (soak.ran.some((ran) => ran.name === part.name && ran.seed === part.seed)) continue
    if (spent() >= minutes * 60) break
    const left = Math.round((minutes * 60 - spent()) / 60)
    console.log(`\n== soak: ${part.name}, seed ${part.seed} (round ${number + 1}, ${left} minutes left)`)
    const log = join(
      folder,
      'logs',
      `${String(soak.ran.length + 1).padStart(3, '0')}-${part.name.replaceAll(/\W+/g, '-')}.log`,
    )
    const { status, seconds, output } = await executePart(part, log)
    soak.ran.push({
      name: part.name,
      seed: part.seed,
      seconds: Math.round(seconds),
      status,
      log,
      saw: seen(output),
    })
    keep(soak)
    if (status !== 0) console.log(`soak: ${part.name} FAILED (${status}); its log: ${log}`)
  }
}
soak.done = true
keep(soak)
console.log(`\n${writeSoakReport(soak, join(top, 'docs', 'soak.md'))}`)
process.exit(soak.ran.some(({ status }) => status !== 0) ? 1 : 0)
