// The imports of code, and where they lead.
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

const IMPORTS = [
  /^\s*(?:import|export)\b[^'"`;]*?\bfrom\s*['"]([^'"\n]+)['"]/gm,
  /^\s*import\s*['"]([^'"\n]+)['"]/gm,
  /\b(?:import|require)\(\s*['"]([^'"\n]+)['"]\s*\)/g,
]

/** What code imports, and declarations name; comments do not count. */
export function importsOf(file) {
  const code = readFileSync(file, 'utf8').replace(/^\s*(\/\/|\/?\*).*$/gm, '')
  return IMPORTS.flatMap((pattern) => [...code.matchAll(pattern)].map(([, name]) => name))
}

/** The file that `file`, code or declarations, means by a relative `name`. */
export function resolved(file, name) {
  const path = join(dirname(file), name)
  return /\.d\.c?ts$/.test(file) ? path.replace(/\.(c?)js$/, '.d.$1ts') : path
}

/** The files that `exports` and `bin` name. */
export function leadsTo({ exports = {}, bin = {} }) {
  const leaves = (value) => (typeof value === 'string' ? [value] : Object.values(value).flatMap(leaves))
  return leaves([exports, bin]).filter((path) => path.startsWith('./'))
}

/** @returns the paths of all code of the package in `folder` that one may get to from outside */
export function reachedFrom(folder, manifest) {
  const reached = new Set()
  const next = leadsTo(manifest).map((path) => join(folder, path))
  for (let file = next.pop(); file !== undefined; file = next.pop()) {
    if (reached.has(file) || !existsSync(file)) continue
    reached.add(file)
    if (/\.[cm]?[jt]s$/.test(file))
      next.push(
        ...importsOf(file)
          .filter((name) => name.startsWith('.'))
          .map((name) => resolved(file, name)),
      )
  }
  return reached
}
