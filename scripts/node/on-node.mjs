// The tests of verbs, of the ring and of the block engine's binding on other versions of Node.js: node scripts/node/on-node.mjs [--quick] VERSION…
// VERSION is one of npm's package `node` (20.19, 24), or `newest`. It is installed into build/node-VERSION, once. The addons
// are as npm run build has made them: Node-API is the same in all. --quick runs a part, of which each file rests on what
// differs between versions: contexts, realms, streams, workers, how processes exit, the heap. Status: 0 all tests of all
// versions passed.
import { spawnSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { installNode } from './node-versions.mjs'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const QUICK = [
  'packages/verbs/test/(bytes|exits|handles|names|resources|worker)',
  'packages/verbs/test/conformance/(completion-queue|data|memory|memory-after-close)',
  'packages/ring-transport/test/(busy-pool|connection|contexts|exits|other-realms|receiving|service|transfer)',
  'packages/nbd-client/test/engine/(engine)',
]

const { values: options, positionals } = parseArgs({
  options: { quick: { type: 'boolean' } },
  allowPositionals: true,
})
if (positionals.length === 0) {
  console.error('usage: node scripts/node/on-node.mjs [--quick] VERSION…')
  process.exit(2)
}

/** The test files that `folder/(name|name)` stands for, each in whatever folder below. */
function named(pattern) {
  const [, folder, names] = /^(.*)\/\((.*)\)$/.exec(pattern)
  const files = readdirSync(join(top, folder), { recursive: true })
  return names.split('|').map((name) => {
    const file = files.find((each) => `/${each}`.endsWith(`/${name}.test.ts`))
    if (file === undefined) throw new Error(`there is no ${name}.test.ts below ${folder}`)
    return `${folder}/${file}`
  })
}

let failed = false
for (const word of positionals) {
  const program = installNode(word)
  console.log(`on-node: ${spawnSync(program, ['--version'], { encoding: 'utf8' }).stdout.trim()}`)
  const vitest = join(top, 'node_modules', 'vitest', 'vitest.mjs')
  const files = options.quick
    ? QUICK.flatMap(named)
    : ['packages/verbs/', 'packages/ring-transport/', ...QUICK.slice(-1).flatMap(named)]
  const { status } = spawnSync(program, [vitest, 'run', ...files], { cwd: top, stdio: 'inherit' })
  failed ||= status !== 0
}
process.exitCode = failed ? 1 : 0
