// Which packages rdmakit-build-addons finds, in folders as npm and as pnpm make them. cmake-js, npm and the compiler are
// programs that only say where they are run: a second.
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeEach, expect, it, onTestFinished } from 'vitest'

const verbs = fileURLToPath(new URL('../..', import.meta.url))

let project: string

beforeEach(() => {
  project = realpathSync(mkdtempSync(join(tmpdir(), 'rdmakit-build-')))
  onTestFinished(() => rmSync(project, { recursive: true }))
  const program = (name: string, line = '') => put(`bin/${name}`, `#!/bin/sh\n${line}\n`, 0o755)
  for (const name of ['c++', 'cmake', 'ninja']) program(name)
  program('cmake-js', 'echo "built $PWD"')
  // The last word but two is the folder into which it installs.
  program(
    'npm',
    `while [ "$1" != --prefix ]; do shift; done; mkdir -p $2/node_modules; ln -s ${project}/bin $2/node_modules/.bin`,
  )
})

function put(path: string, content = '{}', mode = 0o644) {
  mkdirSync(dirname(join(project, path)), { recursive: true })
  writeFileSync(join(project, path), content, { mode })
}

/** A package with sources, in a node_modules. @returns its folder */
function install(modules: string, name: string): string {
  const home = `${modules}/node_modules/${name}`
  put(`${home}/package.json`)
  put(`${home}/CMakeLists.txt`)
  if (name === '@rdmakit/verbs')
    cpSync(join(verbs, 'build-addons.mjs'), join(project, home, 'build-addons.mjs'))
  return join(project, home)
}

/** As pnpm does: the package `to`, where modules in the node_modules of `modules` find it. */
function link(modules: string, name: string, to: string) {
  const path = join(project, modules, 'node_modules', name)
  mkdirSync(dirname(path), { recursive: true })
  symlinkSync(to, path)
}

/** Runs the one that is in the folder `home` of @rdmakit/verbs. */
function build(home: string, cwd = project) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(home, 'build-addons.mjs')], {
    env: { PATH: `${join(project, 'bin')}:${process.env.PATH}` },
    encoding: 'utf8',
    cwd,
  })
  const built = [...stdout.matchAll(/^built (.*)$/gm)].map(([, folder]) => folder)
  const notFound = [...stdout.matchAll(/: no (\S+) that uses .* was found from /g)].map(([, name]) => name)
  return { status, built, notFound, stderr }
}

/** Each package alone in its store, beside links to what it depends on; the folder app sees only `rdmakit`. */
function installIsolated() {
  const depends = { rdmakit: ['swap-server', 'nbd-client'], 'swap-server': ['ring-transport', 'verbs'] }
  const packages = {
    ...depends,
    'ring-transport': ['verbs'],
    'nbd-client': ['swap-server', 'verbs'],
    verbs: [],
  }
  const nameOf = (part: string) => (part === 'rdmakit' ? part : `@rdmakit/${part}`)
  const homes = Object.fromEntries(
    Object.keys(packages).map((part) => [part, install(`store/${part}`, nameOf(part))]),
  ) as Record<keyof typeof packages, string>
  for (const [part, parts] of Object.entries(packages) as [string, (keyof typeof packages)[]][])
    for (const other of parts) link(`store/${part}`, nameOf(other), homes[other])
  link('app', 'rdmakit', homes.rdmakit)
  return homes
}

it('builds what is installed beside it, wherever it is run', () => {
  const homes = ['verbs', 'ring-transport'].map((name) => install('.', `@rdmakit/${name}`))
  const expected = { status: 0, built: homes, notFound: ['@rdmakit/nbd-client'], stderr: '' }
  expect(build(homes[0] as string)).toEqual(expected)
  expect(build(homes[0] as string, '/')).toEqual(expected)
})

it('builds what the packages of the working folder depend on, where each sees only its own', () => {
  const homes = installIsolated()
  const { built, ...rest } = build(homes.verbs, join(project, 'app'))
  expect(built.toSorted()).toEqual([homes['nbd-client'], homes['ring-transport'], homes.verbs].toSorted())
  expect(rest).toEqual({ status: 0, notFound: [], stderr: '' })
})

it('says what it has not found', () => {
  const { verbs } = installIsolated()
  const notFound = ['@rdmakit/ring-transport', '@rdmakit/nbd-client']
  expect(build(verbs, '/')).toEqual({ status: 0, built: [verbs], notFound, stderr: '' })
})

it('leaves alone what uses another @rdmakit/verbs', () => {
  const ours = install('global', '@rdmakit/verbs')
  for (const name of ['verbs', 'ring-transport']) install('.', `@rdmakit/${name}`)
  expect(build(ours).built).toEqual([ours])
})

it('fails when a package has no sources, and builds none', () => {
  const ours = install('.', '@rdmakit/verbs')
  const ring = install('.', '@rdmakit/ring-transport')
  rmSync(join(ring, 'CMakeLists.txt'))
  const { status, built, stderr } = build(ours)
  expect({ status, built }).toEqual({ status: 1, built: [] })
  expect(stderr).toBe(`rdmakit-build-addons: ${ring} has no sources: install it again\n`)
})
