// The unit and conformance suites with the addons under ASan and UBSan, and a V8 that collects all the time: the bindings
// (packages/*/native/binding) run in Node.js alone, where the native tests do not reach them, and what they get wrong is
// mostly the life of an object that JavaScript holds. A part of npm run soak.
// Usage: node scripts/addons-asan.mjs [VITEST ARGUMENT…]   default: all unit tests of packages, conformance on iwarp and shm
// In build/addons-asan/tree, a copy of the checkout that is built incrementally.
import { spawnSync } from 'node:child_process'
import { join, resolve } from 'node:path'
import { Tree } from '../test/mutation/tree.mjs'
import { LEFT_OUT } from './addons-asan-left-out.mjs'

const top = resolve(import.meta.dirname, '..')
const SUITES = ['--project', 'tests', '--project', 'iwarp', '--project', 'shm', 'packages/']

/** The compiler's sanitizer library. The process must load it first, and node is not linked with it. */
function libraryOf(name) {
  const { stdout } = spawnSync('c++', [`-print-file-name=${name}`], { encoding: 'utf8' })
  return stdout.trim()
}

/** @returns its exit status */
function run([program, ...words], env = {}) {
  const { status } = spawnSync(program, words, {
    cwd: tree.tree,
    stdio: 'inherit',
    env: { ...process.env, ...env },
  })
  return status ?? 1
}

const tree = new Tree(top, join(top, 'build', 'addons-asan'))
tree.update()
tree.makeRepository()
console.log('addons-asan: building')
const built = run(['node', 'scripts/build.mjs'], { RDMAKIT_SANITIZE: 'address,undefined' })
if (built !== 0) process.exit(built)

const given = process.argv.slice(2)
const vitest = ['node', 'node_modules/vitest/vitest.mjs', 'run', '-t', `^(?!.*(${LEFT_OUT.join('|')}))`]
process.exit(
  run([...vitest, ...(given.length > 0 ? given : SUITES)], {
    RDMAKIT_COLLECT: '1',
    // Each object's life counts, and not how many there are.
    RDMAKIT_EFFORT: process.env.RDMAKIT_EFFORT ?? '0.2',
    // The C++ library too: ASan looks its functions up when it starts, and throws through what it has found.
    LD_PRELOAD: `${libraryOf('libasan.so')} ${libraryOf('libstdc++.so.6')}`,
    // node frees little at its end. It does not switch stacks, and SIGSEGV is V8's, for WebAssembly.
    ASAN_OPTIONS: 'detect_leaks=0:allow_user_segv_handler=1:quarantine_size_mb=64:abort_on_error=1',
    UBSAN_OPTIONS: 'print_stacktrace=1:abort_on_error=1',
  }),
)
