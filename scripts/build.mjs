// npm run build: each package's addon with cmake-js, TypeScript with project references, then the programs.
// Incremental: a second run compiles only what changed.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundle } from './bundle.mjs'
import { generate } from './generate.mjs'

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
if (only.length === 0 || only.includes('ts')) {
  generate()
  run(join(top, 'node_modules', '.bin', 'tsc'), ['-b'], top)
  await bundle(top, ['swap-server', 'nbd-client'])
}
