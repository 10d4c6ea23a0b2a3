#!/usr/bin/env node
// rdmakit-build-addons: builds the native addons of the @rdmakit packages that are installed with this one, from the
// source in them, for platforms without a package of prebuilt addons. Says what the machine lacks. What it makes comes
// before a prebuilt addon.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const usage = `usage: rdmakit-build-addons

Builds the native addons of the @rdmakit packages that use this @rdmakit/verbs: those installed beside it, and those
that the working folder has in its node_modules. With cmake-js and node-addon-api from npm. Needs a compiler of C++20, CMake, make or ninja, and headers; says which of them are not there.`

/** What the source includes, for whom, and the package of Debian that has it. */
const HEADERS = [
  { header: 'infiniband/verbs.h', debian: 'libibverbs-dev' },
  { header: 'rdma/rdma_cma.h', debian: 'librdmacm-dev' },
  { header: 'gnutls/gnutls.h', debian: 'libgnutls28-dev', only: '@rdmakit/nbd-client' },
  { header: 'liburing.h', debian: 'liburing-dev', only: '@rdmakit/nbd-client' },
]
const TOOLS = [
  { programs: ['c++', 'g++', 'clang++'], debian: 'g++' },
  { programs: ['cmake'], debian: 'cmake' },
  { programs: ['ninja', 'make'], debian: 'ninja-build' },
]

const runs = (program, words, input) =>
  spawnSync(program, words, { input, stdio: ['pipe', 'ignore', 'ignore'] }).status === 0

/** @returns what is not on this machine: what it is, and the package of Debian that has it */
function lacking(names) {
  const found = TOOLS.map(({ programs }) => programs.find((program) => runs(program, ['--version'])))
  const tools = TOOLS.filter((_, index) => found[index] === undefined)
  const missing = tools.map(({ programs, debian }) => ({ what: programs.join(' or '), debian }))
  const [compiler] = found
  if (compiler === undefined) return missing
  for (const { header, debian, only } of HEADERS)
    if (only === undefined || names.includes(only))
      if (!runs(compiler, ['-x', 'c++', '-E', '-'], `#include <${header}>\n`))
        missing.push({ what: header, debian })
  return missing
}

function run(program, words, options) {
  const { status, error } = spawnSync(program, words, { stdio: 'inherit', ...options })
  if (status === 0) return
  console.error(
    `rdmakit-build-addons: ${[program, ...words].join(' ')} failed${error ? `: ${error.message}` : ''}`,
  )
  process.exit(1)
}

if (['--version', '-V'].includes(process.argv[2])) {
  const { version } = JSON.parse(readFileSync(new URL('package.json', import.meta.url), 'utf8'))
  console.log(`rdmakit-build-addons ${version}`)
  process.exit()
}
if (process.argv.length > 2) {
  const asked = process.argv[2] === '--help' || process.argv[2] === '-h'
  console[asked ? 'log' : 'error'](usage)
  process.exit(asked ? 0 : 64)
}

const here = dirname(fileURLToPath(import.meta.url))
const VERBS = '@rdmakit/verbs'
const WITH_ADDON = [VERBS, '@rdmakit/ring-transport', '@rdmakit/nbd-client']
/** Others that depend on these. */
const BETWEEN = ['rdmakit', '@rdmakit/remote-volume', '@rdmakit/swap-server']

/** @returns the folder of the package that modules in `folder` would import, without links; undefined where there is none */
function resolved(name, folder) {
  const places = createRequire(join(folder, 'package.json')).resolve.paths(name)
  const home = places.map((place) => join(place, name)).find((path) => existsSync(join(path, 'package.json')))
  return home && realpathSync(home)
}

/**
 * pnpm shows each package, and the project, only what it depends on itself: so what has been found is asked in its turn.
 * What uses another @rdmakit/verbs belongs to another installation.
 * @returns names by folder
 */
function installed() {
  const found = new Map([[here, VERBS]])
  const folders = [process.cwd(), here]
  for (const folder of folders)
    for (const name of [...WITH_ADDON, ...BETWEEN]) {
      const home = resolved(name, folder)
      if (home === undefined || found.has(home)) continue
      found.set(home, name)
      folders.push(home)
    }
  const ours = ([home, name]) =>
    WITH_ADDON.includes(name) && (home === here || resolved(VERBS, home) === here)
  return new Map([...found].filter(ours))
}

const homes = installed()
const names = [...homes.values()]
for (const name of WITH_ADDON.filter((one) => !names.includes(one)))
  console.log(
    `rdmakit-build-addons: no ${name} that uses ${here} was found from ${process.cwd()}; if there is one, run this again in the folder whose node_modules has it`,
  )
const bare = [...homes.keys()].filter((home) => !existsSync(join(home, 'CMakeLists.txt')))
if (bare.length > 0) {
  for (const home of bare) console.error(`rdmakit-build-addons: ${home} has no sources: install it again`)
  process.exit(1)
}
const missing = lacking(names)
if (missing.length > 0) {
  for (const { what, debian } of missing)
    console.error(`rdmakit-build-addons: there is no ${what} (Debian: ${debian})`)
  console.error(
    `rdmakit-build-addons: as root, on Debian: apt-get install ${missing.map(({ debian }) => debian).join(' ')}`,
  )
  process.exit(1)
}

const tools = mkdtempSync(join(tmpdir(), 'rdmakit-build-'))
process.once('exit', () => rmSync(tools, { recursive: true }))
const words = ['install', '--no-save', '--no-audit', '--no-fund', '--loglevel=error', '--prefix', tools]
run('npm', [...words, 'cmake-js@8', 'node-addon-api@8'])
const modules = join(tools, 'node_modules')
for (const home of homes.keys()) {
  console.log(`rdmakit-build-addons: ${home}`)
  run(
    join(modules, '.bin', 'cmake-js'),
    ['rebuild', '--log-level', 'warn', '--CDRDMAKIT_OLDER_SYSTEMS=OFF'],
    {
      cwd: home,
      env: { ...process.env, NODE_PATH: modules },
    },
  )
}
