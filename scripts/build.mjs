// npm run build [-- PACKAGE…]: each package's addon with cmake-js, TypeScript with project references, then the programs.
// RDMAKIT_SANITIZE=address,undefined builds the addons with these sanitizers (scripts/addons-asan.mjs).
// With packages only those, and what their TypeScript refers to. "ts" is all of TypeScript, without addons. Incremental: a
// second run compiles only what changed.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundle, stamp } from './bundle.mjs'
import { generate } from './generate.mjs'

const top = dirname(dirname(fileURLToPath(import.meta.url)))
/** Each with the packages whose native libraries it links as they were built before it, and does not compile again. */
const addons = {
  verbs: [],
  'ring-transport': ['verbs'],
  'remote-volume': ['verbs'],
  'nbd-client': ['verbs', 'remote-volume'],
}
const programs = ['swap-server', 'nbd-client']
const packages = readdirSync(join(top, 'packages'))

/** @returns whether it ended well */
async function run(command, args, cwd) {
  const [status, signal] = await once(spawn(command, args, { cwd, stdio: 'inherit' }), 'exit')
  if (status !== 0)
    console.error(`build: ${[command, ...args].join(' ')} failed in ${cwd} (${status ?? signal})`)
  return status === 0
}

const bin = (name) => join(top, 'node_modules', '.bin', name)

const only = process.argv.slice(2)
for (const name of only)
  if (name !== 'ts' && !packages.includes(name)) {
    console.error(`build: no package is called "${name}"; known: ${packages.join(', ')}, ts`)
    process.exit(2)
  }
const wanted = (name) => only.length === 0 || only.includes(name)

const linked = new Set(
  Object.keys(addons)
    .filter(wanted)
    .flatMap((addon) => addons[addon]),
)

async function compileAddons() {
  for (const [addon, built] of Object.entries(addons)) {
    if (!wanted(addon) && !linked.has(addon)) continue
    const cwd = join(top, 'packages', addon)
    const sanitize = process.env.RDMAKIT_SANITIZE
    const given = sanitize === undefined ? [] : [`--CDRDMAKIT_SANITIZE=${sanitize}`]
    if (built.length > 0) given.push('--CDRDMAKIT_BUILT=ON')
    const options = ['compile', '--log-level', 'warn', '--parallel', '2', ...given]
    if (!(await run(bin('cmake-js'), options, cwd))) return false
  }
  return true
}

async function compileTypeScript() {
  const all = wanted('ts')
  const built = (name) => all || wanted(name)
  const projects = all ? [] : only.map((name) => join('packages', name))
  if (!(await run(bin('tsc'), ['-b', ...projects], top))) return false
  await bundle(top, programs.filter(built))
  await stamp(top, [...programs, 'rdmakit'].filter(built))
  return true
}

generate()
// Neither needs the other, and each is alone for a part of its time.
const done = await Promise.all([compileAddons(), compileTypeScript()])
if (done.includes(false)) process.exit(1)
