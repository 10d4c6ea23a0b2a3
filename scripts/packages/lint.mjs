// Mistakes in a package that are visible without running it: missing and unused dependencies; publint; Are
// the types wrong.
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { isBuiltin } from 'node:module'
import { join, relative } from 'node:path'
import { promisify } from 'node:util'
import { importsOf, leadsTo, resolved } from './imports.mjs'

const execute = promisify(execFile)

function filesOf(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
}

const packageOf = (name) => /^(@[^/]+\/[^/]+|[^/]+)/.exec(name)[1]

/** They go together, and one may load another by a name that it makes. */
const isOurs = (name) => name.startsWith('@rdmakit/')

/**
 * @param folder of an installed package
 * @returns what is wrong, in lines
 */
export function importsAndDependencies(folder) {
  const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  const { dependencies = {}, peerDependencies = {}, optionalDependencies = {} } = manifest
  const declared = { ...dependencies, ...peerDependencies, ...optionalDependencies }
  const problems = []
  const used = new Set([manifest.name])
  for (const file of filesOf(folder)) {
    const name = relative(folder, file)
    if (!/^(bin|dist|generated|proto)\/.*\.[cm]?[jt]s$/.test(name)) continue
    for (const wanted of importsOf(file)) {
      if (isBuiltin(wanted)) continue
      if (!wanted.startsWith('.')) used.add(packageOf(wanted))
      // A program is a bundle: its contents need no package, except for addons, which are loaded by name.
      const owner = packageOf(wanted)
      if (wanted.startsWith('.')) {
        if (!existsSync(resolved(file, wanted)))
          problems.push(`${manifest.name}: ${name} imports ${wanted}, which is not packed`)
      } else if (owner !== manifest.name && !(owner in declared))
        problems.push(`${manifest.name}: ${name} imports ${wanted}, and ${owner} is no dependency`)
    }
  }
  for (const name of Object.keys({ ...dependencies, ...peerDependencies }))
    if (!used.has(name) && !isOurs(name))
      problems.push(`${manifest.name}: nothing in it imports ${name}, a dependency`)
  for (const path of leadsTo(manifest))
    if (!existsSync(join(folder, path)))
      problems.push(`${manifest.name}: package.json names ${path}, which is not packed`)
  for (const path of ['LICENSE', 'README.md'])
    if (!existsSync(join(folder, path))) problems.push(`${manifest.name}: there is no ${path}`)
  for (const field of ['engines', 'os', 'license', 'description', 'keywords'])
    if (manifest[field] === undefined) problems.push(`${manifest.name}: package.json has no ${field}`)
  return problems
}

/** Source maps without their sources are of no use: those are not packed. @returns what is wrong, in lines */
export function sourceMaps(folder) {
  return filesOf(join(folder, 'dist'))
    .filter((file) => file.endsWith('.map'))
    .filter((file) => {
      const { sources, sourcesContent = [] } = JSON.parse(readFileSync(file, 'utf8'))
      return sourcesContent.filter((text) => typeof text === 'string').length !== sources.length
    })
    .map((file) => `${relative(folder, file)} has not the text of its sources`)
}

/** @returns what is wrong, in lines */
async function complaints(program, words) {
  try {
    await execute(program, words)
    return []
  } catch ({ message, stdout = '', stderr = '' }) {
    return [`${message}\n${stdout}${stderr}`]
  }
}

/** `require()` of ES modules is what all versions in `engines` can do, and moduleResolution node10 knows no `exports`. */
const ATTW = [
  '--profile',
  'node16',
  '--ignore-rules',
  'cjs-resolves-to-esm',
  '--format',
  'ascii',
  '--no-color',
]

export const publint = (bin, tarball) => complaints(bin('publint'), ['run', tarball, '--strict'])
export const typesWrong = (bin, tarball) => complaints(bin('attw'), [tarball, ...ATTW])
export const compiles = (bin, project) => complaints(bin('tsc'), ['-p', project])
