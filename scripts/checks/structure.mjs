#!/usr/bin/env node
// Holds the structure that docs/architecture.md draws: who may import whom, in TypeScript and in C++; no circle of imports or
// includes; folders and files small enough to be read; no .cc that belongs to no target.
// Usage: scripts/checks/structure.mjs [--siblings]   (--siblings: besides, the modules that take from most of their siblings)
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename, dirname, join, matchesGlob, normalize } from 'node:path'

const FILES_A_FOLDER = 20
const LINES_A_FILE = 400
const SIBLINGS_A_MODULE = 8

/** Each package and those below it that it may import. A test or an example may import all. */
const PACKAGES = {
  'operator-kit': [],
  verbs: [],
  'ring-transport': ['verbs'],
  'swap-server': ['operator-kit', 'ring-transport', 'verbs'],
  'remote-volume': ['operator-kit', 'swap-server', 'ring-transport', 'verbs'],
  'nbd-client': ['operator-kit', 'remote-volume', 'swap-server', 'ring-transport', 'verbs'],
  rdmakit: ['operator-kit', 'nbd-client', 'remote-volume', 'swap-server', 'ring-transport', 'verbs'],
}

/** Each native folder and the others that it may include: all else is private to who owns it. */
const NATIVE = {
  'verbs/include': [],
  'verbs/base': ['verbs/include'],
  'verbs/provider': ['verbs/base', 'verbs/include'],
  'verbs/software': ['verbs/provider', 'verbs/base', 'verbs/include'],
  'verbs/iwarp': ['verbs/software', 'verbs/provider', 'verbs/base', 'verbs/include'],
  'verbs/shm': ['verbs/software', 'verbs/provider', 'verbs/base', 'verbs/include'],
  'verbs/ibverbs': ['verbs/provider', 'verbs/base', 'verbs/include'],
  'verbs/binding': ['verbs/provider', 'verbs/base', 'verbs/include'],
}

/** Circles that stay, each with its reason. */
const CIRCLES = [
  {
    // A verbs object names what it was made from, by type alone: an import of a value goes from parent to child only.
    files: [
      'packages/verbs/src/completion/completion-array.ts',
      'packages/verbs/src/completion/completion-channel.ts',
      'packages/verbs/src/completion/completion-queue.ts',
      'packages/verbs/src/connection/connection-id.ts',
      'packages/verbs/src/device/context.ts',
      'packages/verbs/src/device/protection-domain.ts',
      'packages/verbs/src/memory/memory-region.ts',
      'packages/verbs/src/memory/memory-window.ts',
      'packages/verbs/src/queue-pair/address-vector.ts',
      'packages/verbs/src/queue-pair/queue-pair-state.ts',
      'packages/verbs/src/queue-pair/queue-pair.ts',
      'packages/verbs/src/queue-pair/shared-receive-queue.ts',
      'packages/verbs/src/queue-pair/work-request-slots.ts',
      'packages/verbs/src/queue-pair/work-request.ts',
    ],
  },
]

/** Modules that take from more of their siblings, and may not from more than this. */
const FACES = 'a public class that passes calls on: it names the types of what its parts take and give'
const FAMILY = 'a verbs object makes its children, and is told its parents: the circle above'
const MANY_SIBLINGS = {
  'packages/ring-transport/src/connection/connection.ts': [11, FACES],
  'packages/ring-transport/src/server/server.ts': [9, FACES],
  'packages/verbs/src/completion/completion-queue.ts': [10, FAMILY],
  'packages/verbs/src/connection/connection-id.ts': [10, FAMILY],
  'packages/verbs/src/device/protection-domain.ts': [10, FAMILY],
  'packages/verbs/src/queue-pair/queue-pair.ts': [12, FAMILY],
}

const tracked = execFileSync('git', ['ls-files', '-z', 'packages', 'test', 'bench', 'examples'], {
  encoding: 'utf8',
})
  .split('\0')
  .filter((path) => path && !/\/(generated|corpus|corpora|fixtures)\//.test(path))
const text = new Map()
for (const path of tracked) {
  if (!/\.(ts|mjs|cts|cc|h)$/.test(path)) continue
  try {
    text.set(path, readFileSync(path, 'utf8'))
  } catch (error) {
    if (error.code !== 'ENOENT') throw error // deleted, and not yet committed
  }
}
const faults = []

/** Specifiers of all that a TypeScript module imports or re-exports, types too. */
function specifiers(source) {
  const found = source.matchAll(
    /(?:^|\n)\s*(?:import|export)\s(?:[^'";]*?\sfrom\s)?'([^']+)'|\bimport\('([^']+)'\)/g,
  )
  return [...found].map((match) => match[1] ?? match[2])
}

/** The file that `#include "name"` in `path` means, where it is one of ours. */
function included(path, name) {
  const beside = normalize(join(dirname(path), name))
  if (text.has(beside)) return beside
  const owner = path.match(/^packages\/[^/]+/)?.[0] ?? ''
  const ends = headers.filter((header) => header.endsWith(`/${name}`))
  return ends.find((header) => owner && header.startsWith(`${owner}/`)) ?? ends[0]
}
const headers = [...text.keys()].filter((path) => path.endsWith('.h'))

const packageOf = (path) => path.match(/^packages\/([^/]+)\/src\//)?.[1]
const nativeOf = (path) => {
  const match = path.match(/^packages\/([^/]+)\/native\/(?:([^/]+)\/)?/)
  return match ? `${match[1]}/${match[2] ?? ''}` : undefined
}

/** path → the files that it imports or includes. */
const imports = new Map()
for (const [path, source] of text) {
  const taken = new Set()
  imports.set(path, taken)
  if (/\.(cc|h)$/.test(path)) {
    for (const [, name] of source.matchAll(/^#include "([^"]+)"/gm)) {
      const file = included(path, name)
      if (!file) continue
      taken.add(file)
      const from = nativeOf(path)
      const to = nativeOf(file)
      if (!from || !to || from === to) continue
      const [fromPackage, toPackage] = [from, to].map((folder) => folder.split('/')[0])
      if (NATIVE[from] ? !NATIVE[from].includes(to) : fromPackage !== toPackage && !isPublic(to))
        faults.push(`${path} includes ${file}: ${from} may not include ${to}`)
      if (fromPackage !== toPackage && !PACKAGES[fromPackage].includes(toPackage))
        faults.push(`${path} includes ${file}: ${fromPackage} does not rest on ${toPackage}`)
    }
    continue
  }
  for (const name of specifiers(source)) {
    if (name.startsWith('.')) {
      const target = normalize(join(dirname(path), name))
      const file = [target, target.replace(/\.js$/, '.ts'), target.replace(/\.cjs$/, '.cts')].find((each) =>
        text.has(each),
      )
      if (file) taken.add(file)
    }
    const from = packageOf(path)
    const to = name.match(/^@rdmakit\/([^/]+)/)?.[1]
    if (from && to && to !== from && !PACKAGES[from]?.includes(to))
      faults.push(`${path} imports ${name}: ${from} does not rest on ${to}`)
  }
}

/** Whether the native code of other packages may include the headers of a folder: remote-volume is compiled into them. */
function isPublic(folder) {
  return folder === 'verbs/include' || folder === 'verbs/base' || folder.startsWith('remote-volume/')
}

/** Circles of a graph: Tarjan's strongly connected components of more than one (SIAM J. Comput. 1(2), 1972). */
function circles(graph) {
  const found = []
  const index = new Map()
  const low = new Map()
  const stack = []
  const visit = (node) => {
    index.set(node, index.size)
    low.set(node, index.get(node))
    stack.push(node)
    for (const next of graph.get(node) ?? []) {
      if (!index.has(next)) visit(next)
      if (stack.includes(next)) low.set(node, Math.min(low.get(node), low.get(next)))
    }
    if (low.get(node) !== index.get(node)) return
    const circle = stack.splice(stack.indexOf(node))
    if (circle.length > 1) found.push(circle.sort())
  }
  for (const node of graph.keys()) if (!index.has(node)) visit(node)
  return found
}
for (const circle of circles(imports)) {
  if (!CIRCLES.some((known) => known.files.join() === circle.join()))
    faults.push(`a circle of imports: ${circle.join(' ')}`)
}

const folders = new Map()
for (const path of tracked)
  if (/^(packages|test)\//.test(path)) folders.set(dirname(path), (folders.get(dirname(path)) ?? 0) + 1)
for (const [folder, count] of folders) {
  if (count > FILES_A_FOLDER) faults.push(`${folder} holds ${count} files: ${FILES_A_FOLDER} at most`)
}
for (const [path, source] of text) {
  const lines = source.split('\n').length - 1
  if (lines > LINES_A_FILE && /^(packages|test)\//.test(path))
    faults.push(`${path} has ${lines} lines: ${LINES_A_FILE} at most`)
}

// A test may run what is built: a name of it whose source is gone works only where an old build lies about.
const isSource = (path) => ['.ts', '.cts', '.mts'].some((end) => text.has(path + end))
for (const [path, source] of text) {
  for (const [name, home, module] of source.matchAll(
    /((?:\.\.?\/)+|(?:packages|test|bench|examples)\/[\w/-]*?)dist\/([\w/-]+)\.js/g,
  )) {
    const folder = home.startsWith('.') ? normalize(join(dirname(path), home)) : home
    if (
      /\/(cli|main)$/.test(`/${module}`) ||
      isSource(join(folder, 'src', module)) ||
      isSource(join(folder, module))
    )
      continue
    faults.push(`${path} names ${name}, which nothing is compiled into`)
  }
}

/** What the CMake lists compile: names and patterns of .cc files, each from its list's folder. */
const lists = execFileSync('git', ['ls-files', '*CMakeLists.txt', '*.cmake'], { encoding: 'utf8' })
  .split('\n')
  .filter(Boolean)
const named = [...text]
  .filter(([path]) => path.startsWith('test/lab/'))
  .map(([, source]) => source)
  .join('\n')
const patterns = lists.flatMap((list) =>
  [...readFileSync(list, 'utf8').matchAll(/[^\s()";]+\.cc\b/g)].map(([name]) => {
    const own = name
      .replace(/^\$\{(CMAKE_CURRENT_(SOURCE|LIST)_DIR|RDMAKIT_CMAKE)\}\//, '')
      .replace(/^\$\{RDMAKIT_\w+_NATIVE\}/, '../native')
      .replace(/^\$\{packages\}/, 'packages')
    return own === name && /^(packages|test|bench)\//.test(name)
      ? name
      : normalize(join(dirname(list), own)).replace(/\$\{[^}]+\}/g, '*')
  }),
)
for (const path of text.keys()) {
  if (path.endsWith('.cc') && !patterns.some((pattern) => path === pattern || matchesGlob(path, pattern)))
    if (!named.includes(`'${basename(path)}'`))
      // The guests' own programs are one file each, compiled by the lab that names them.
      faults.push(`${path} belongs to no target of a CMake list`)
}

const siblings = [...imports]
  .filter(([path]) => packageOf(path) && basename(path) !== 'index.ts')
  .map(([path, taken]) => [[...taken].filter((file) => packageOf(file) === packageOf(path)).length, path])
  .sort(([a], [b]) => b - a)
for (const [count, path] of siblings) {
  const [most] = MANY_SIBLINGS[path] ?? [SIBLINGS_A_MODULE]
  if (count > most) faults.push(`${path} takes from ${count} of its siblings: ${most} at most`)
  if (MANY_SIBLINGS[path] && count < most)
    faults.push(`${path} takes from ${count} of its siblings: so many may it take from, no more ${most}`)
}
if (process.argv.includes('--siblings'))
  for (const [count, path] of siblings.slice(0, 20)) console.log(`${String(count).padStart(4)}  ${path}`)
for (const fault of faults) console.error(`structure: ${fault}`)
if (faults.length) process.exit(1)
