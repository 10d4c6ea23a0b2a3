// npm run test:packages [-- OPTION…]: the tarballs of npm run pack as strangers meet them. Linted; compiled against; and
// installed on machines that have Node.js and nothing else, where they must do what their READMEs say. See
// docs/packages.md.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { build, transform } from 'esbuild'
import { installNode, LOWEST } from '../node/node-versions.mjs'
import { emulated, emulatedNode } from './cross.mjs'
import { compiles, importsAndDependencies, publint, sourceMaps, typesWrong } from './lint.mjs'
import { emptyMachine, emulatedMachine, runOn } from './machine.mjs'
import { buildAddons, pack } from './pack.mjs'

/** A version of Node.js whose program npm has for 64-bit ARM. */
const EMULATED = '20.19.6'

const usage = `usage: npm run test:packages [-- OPTION…]

  --node VERSION   try with this version of Node.js (of npm's package "node", or "newest"); may be repeated
                   (default: ${LOWEST} and newest)
  --system SUITE   try on this suite of Debian (bookworm, trixie, bullseye) instead of a machine with Node.js alone; may be
                   repeated. Needs debootstrap
  --emulate        the addons for Linux on 64-bit ARM, on a machine that qemu-user emulates, with Node.js ${EMULATED} alone
  --no-lint        only install and run`

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const place = join(top, 'build', 'packages')
const bin = (name) => join(top, 'node_modules', '.bin', name)
const readJson = (path) => JSON.parse(readFileSync(path, 'utf8'))
/** What hangs is ended: installing and all cases, some times over. */
const LIMIT_MS = 900_000
/** An emulated machine takes ten times as long, and more beside other work. */
const EMULATED_LIMIT_MS = 3_600_000

/** As scripts/reports/results-reporter.mjs writes them, for scripts/reports/count-tests.mjs. */
const testResults = []

function report(project, cases) {
  const assertionResults = cases.map(({ name, failure }) => ({
    status: failure === undefined ? 'passed' : 'failed',
    fullName: name,
    meta: { project },
    failureMessages: failure === undefined ? [] : [failure],
  }))
  const failed = assertionResults.some(({ status }) => status === 'failed')
  testResults.push({ name: 'test/packages/try.mjs', status: failed ? 'failed' : 'passed', assertionResults })
}

/** The first example of a package's README, as Node.js 20 runs it. */
async function firstExample(name) {
  const text = readFileSync(join(top, 'packages', name, 'README.md'), 'utf8')
  const code = /^```[jt]s\n(.*?)^```$/ms.exec(text)?.[1]
  if (code === undefined) throw new Error(`packages/${name}/README.md has no example`)
  return (await transform(code, { loader: 'ts', format: 'esm', target: 'node20' })).code
}

/** The folder of a program that uses the packages. */
async function makeConsumer(folder) {
  mkdirSync(folder, { recursive: true })
  cpSync(join(top, 'test', 'packages'), folder, { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{ "name": "consumer", "private": true, "type": "module" }\n')
  mkdirSync(join(folder, 'readme'))
  for (const name of [
    'operator-kit',
    'verbs',
    'ring-transport',
    'swap-server',
    'remote-volume',
    'nbd-client',
  ])
    writeFileSync(join(folder, 'readme', `${name}.mjs`), await firstExample(name))
  const target = readFileSync(join(top, 'examples', 'write', 'target.ts'), 'utf8')
  const { code } = await transform(target, { loader: 'ts', format: 'esm', target: 'node20' })
  writeFileSync(join(folder, 'readme', 'target.mjs'), code)
}

/** Makes ring.mjs one file with all that it imports, but for addons: of either kind of module. */
async function bundle(folder) {
  for (const [format, file] of [
    ['esm', 'ring.mjs'],
    ['cjs', 'ring.cjs'],
  ])
    await build({
      entryPoints: [join(folder, file)],
      outfile: join(folder, 'bundled', file),
      bundle: true,
      platform: 'node',
      target: 'node20',
      format,
      logLevel: 'error',
    })
}

function npmInstall(folder, words) {
  const options = ['--no-audit', '--no-fund', '--loglevel=error', '--prefer-offline']
  const { status } = spawnSync('npm', ['install', ...options, ...words], { cwd: folder, stdio: 'inherit' })
  if (status !== 0) throw new Error('npm install has failed')
}

async function lint(folder, tarballs) {
  const homes = tarballs.map(({ name }) => join(folder, 'node_modules', name))
  const packages = homes.filter((home) => !home.includes('/addons-'))
  const typed = tarballs.filter(
    ({ name }) => readJson(join(folder, 'node_modules', name, 'package.json')).exports?.['.'],
  )
  const found = await Promise.all([
    packages.flatMap(importsAndDependencies),
    packages.flatMap(sourceMaps),
    compiles(bin, join(folder, 'tsconfig.nodenext.json')),
    compiles(bin, join(folder, 'tsconfig.bundler.json')),
    ...tarballs.map(({ path }) => publint(bin, path)),
    ...typed.map(({ path }) => typesWrong(bin, path)),
  ])
  const problems = found.flat()
  for (const problem of problems) console.error(`gate: ${problem}`)
  report('lint', [
    { name: 'nothing is wrong', failure: problems.length > 0 ? problems.join('\n') : undefined },
  ])
  console.log(
    `gate: imports, publint, types: ${problems.length === 0 ? 'nothing wrong' : `${problems.length} wrong`}`,
  )
  return problems.length === 0
}

function debian(suite) {
  const root = join(top, 'build', 'chroots', suite)
  if (!existsSync(root)) {
    mkdirSync(dirname(root), { recursive: true })
    rmSync(`${root}.part`, { recursive: true, force: true })
    // From the mirror that apt uses here.
    const uris = execFileSync('apt-get', ['indextargets', '--format', '$(REPO_URI)'], { encoding: 'utf8' })
    const [mirror] = uris.split('\n').filter((uri) => /\/debian\/?$/.test(uri))
    // With the library that Node.js 26 wants beside those of C and C++.
    const words = ['--variant=minbase', '--include=libatomic1', suite, `${root}.part`, mirror]
    execFileSync('debootstrap', words, { stdio: ['ignore', 'ignore', 'inherit'] })
    renameSync(`${root}.part`, root)
  }
  return root
}

const { values: options } = parseArgs({
  options: {
    node: { type: 'string', multiple: true, default: [LOWEST, 'newest'] },
    system: { type: 'string', multiple: true, default: [] },
    emulate: { type: 'boolean' },
    lint: { type: 'boolean', default: true },
    help: { type: 'boolean' },
  },
  allowNegative: true,
})
if (options.help) {
  console.log(usage)
  process.exit()
}

rmSync(place, { recursive: true, force: true })
const tarballs = pack([`${process.platform}-${process.arch}`], join(place, 'tarballs'))
const host = join(place, 'host')
await makeConsumer(host)
// This fills npm's cache, from which machines without a network install; and it has what the compiler wants.
const { version } = readJson(join(top, 'node_modules/@types/node/package.json'))
npmInstall(host, [...tarballs.map(({ path }) => path), `@types/node@${version}`])
let held = !options.lint || (await lint(host, tarballs))
await bundle(host)

const npm = join(execFileSync('npm', ['root', '--global'], { encoding: 'utf8' }).trim(), 'npm')
const cache = execFileSync('npm', ['config', 'get', 'cache'], { encoding: 'utf8' }).trim()

/** Installs on a machine, and runs all cases. */
async function tryOn(name, machine, given) {
  const folder = join(place, name)
  await makeConsumer(folder)
  cpSync(join(host, 'bundled'), join(folder, 'bundled'), { recursive: true })
  const mounts = { '/app': folder, '/tarballs': given, '/npm': npm, '/cache': cache }
  const [words, limit] = machine.emulate
    ? [['try.mjs', 'emulated'], EMULATED_LIMIT_MS]
    : [['try.mjs'], LIMIT_MS]
  const status = await runOn({ ...machine, mounts, folder: '/app' }, words, limit)
  if (status !== 0) console.error(`gate: ${name}: ${status}`)
  held &&= status === 0
  const told = join(folder, 'cases.json')
  report(name, existsSync(told) ? readJson(told) : [{ name: 'to its end', failure: `${status}` }])
}

if (options.emulate) {
  buildAddons(['linux-arm64'])
  const given = join(place, 'tarballs-arm64')
  pack(['linux-arm64'], given)
  const root = join(place, 'root-arm64')
  emulatedMachine(root, emulated)
  await tryOn('arm64', { root, node: emulatedNode(EMULATED), emulate: true }, given)
} else
  for (const word of options.node) {
    const node = installNode(word)
    for (const system of options.system.length === 0 ? ['empty'] : options.system) {
      const root = system === 'empty' ? join(place, `root-${word}`) : debian(system)
      if (system === 'empty') emptyMachine(root, node)
      await tryOn(`${system}-${word}`, { root, node }, join(place, 'tarballs'))
    }
  }
const results = join(top, 'test-results')
mkdirSync(results, { recursive: true })
const numTotalTests = testResults.reduce((sum, { assertionResults }) => sum + assertionResults.length, 0)
writeFileSync(join(results, 'packages.json'), JSON.stringify({ numTotalTests, testResults }))
process.exitCode = held ? 0 : 1
