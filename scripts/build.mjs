// npm run build: TypeScript with project references, then each package's addon with cmake-js.
// Incremental: a second run compiles only what changed.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const top = dirname(dirname(fileURLToPath(import.meta.url)))
const addons = ['verbs', 'ring-transport', 'nbd-client']
const only = process.argv.slice(2)

function run(command, args, cwd) {
  const { status } = spawnSync(command, args, { cwd, stdio: 'inherit' })
  if (status !== 0) {
    console.error(`build: ${[command, ...args].join(' ')} failed in ${cwd}`)
    process.exit(status ?? 1)
  }
}

for (const addon of addons) {
  if (only.length > 0 && !only.includes(addon)) continue
  const cwd = join(top, 'packages', addon)
  const binding = join(cwd, 'native', 'binding')
  if (!existsSync(binding) || readdirSync(binding).length === 0) continue
  run(
    join(top, 'node_modules', '.bin', 'cmake-js'),
    ['compile', '--log-level', 'warn', '--parallel', '2'],
    cwd,
  )
}
/** The control protocol's messages, from their .proto, when that is newer. */
function generateProtocol() {
  const cwd = join(top, 'packages', 'swap-server')
  const source = join(cwd, 'proto', 'control.proto')
  const script = join(cwd, 'generated', 'control.js')
  const types = join(cwd, 'generated', 'control.d.ts')
  if (existsSync(types) && statSync(types).mtimeMs > statSync(source).mtimeMs) return
  mkdirSync(dirname(script), { recursive: true })
  const bin = (name) => join(top, 'node_modules', '.bin', name)
  const form = [
    '-t',
    'static-module',
    '-w',
    'es6',
    '--force-number',
    '--no-verify',
    '--no-convert',
    '--no-delimited',
    '--no-service',
  ]
  run(bin('pbjs'), [...form, '-o', script, source], cwd)
  run(bin('pbts'), ['-o', types, script], cwd)
}

if (only.length === 0 || only.includes('ts')) generateProtocol()
if (only.length === 0 || only.includes('ts')) run(join(top, 'node_modules', '.bin', 'tsc'), ['-b'], top)
