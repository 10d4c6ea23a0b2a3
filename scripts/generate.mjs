// npm run generate: classes of protobuf messages and services from their .proto files, where those are
// newer, or this file is. Part of npm run build.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const top = dirname(dirname(fileURLToPath(import.meta.url)))

const protocols = [
  {
    from: 'packages/swap-server/proto/control.proto',
    to: 'packages/swap-server/generated/control',
    options: ['--no-verify', '--no-service', '--dependency', '../proto/protobuf.js'],
  },
  {
    from: 'packages/ring-transport/test/helpers/calculator.proto',
    to: 'packages/ring-transport/test/generated/calculator',
    options: [],
  },
  { from: 'examples/service/greeter.proto', to: 'examples/service/generated/greeter', options: [] },
]

function run(command, args) {
  const { status } = spawnSync(join(top, 'node_modules', '.bin', command), args, {
    cwd: top,
    stdio: 'inherit',
  })
  if (status !== 0) {
    console.error(`generate: ${[command, ...args].join(' ')} failed`)
    process.exit(status ?? 1)
  }
}

export function generate() {
  for (const { from, to, options } of protocols) {
    const types = join(top, `${to}.d.ts`)
    const sources = [join(top, from), fileURLToPath(import.meta.url)]
    const newest = Math.max(...sources.map((source) => statSync(source).mtimeMs))
    if (existsSync(types) && statSync(types).mtimeMs > newest) continue
    mkdirSync(dirname(types), { recursive: true })
    const form = ['-t', 'static-module', '-w', 'es6', '--force-number', '--no-convert', '--no-delimited']
    run('pbjs', [...form, ...options, '-r', to, '-o', `${to}.js`, from])
    run('pbts', ['-o', `${to}.d.ts`, `${to}.js`])
    // pbts names the type of 64-bit integers, which are numbers here: that package need not be installed.
    const declarations = readFileSync(types, 'utf8')
    writeFileSync(types, declarations.replace(/^import Long = require\("long"\);\n/m, ''))
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) generate()
