// Which native addon a package loads, and what is said where there is none. Of real addons, in folders as npm makes them:
// a second.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeEach, expect, it, onTestFinished } from 'vitest'

const packages = fileURLToPath(new URL('../../..', import.meta.url))
const BUILT = join(packages, 'verbs/build/Release/verbs.node')
const PLATFORM = `@rdmakit/addons-${process.platform}-${process.arch}`

let modules: string

/** @rdmakit/verbs and no addon, where no other node_modules are above it. */
beforeEach(() => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-addon-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  modules = join(folder, 'node_modules')
  for (const part of ['package.json', 'dist', 'build-addons.mjs'])
    cpSync(join(packages, 'verbs', part), join(modules, '@rdmakit/verbs', part), { recursive: true })
})

function put(addon: string | Buffer, ...path: string[]) {
  const file = join(modules, ...path)
  mkdirSync(join(file, '..'), { recursive: true })
  if (typeof addon === 'string') cpSync(addon, file)
  else writeFileSync(file, addon)
}

/** @returns the file that was loaded; or the error's code and message */
function load() {
  const { stdout, stderr } = spawnSync(
    process.execPath,
    [
      '--eval',
      `try {
         require('@rdmakit/verbs/addon')
         console.log(Object.keys(require.cache).filter((file) => file.endsWith('.node')).join())
       } catch ({ code, message }) { console.log(code, message) }`,
    ],
    { encoding: 'utf8', cwd: join(modules, '..') },
  )
  expect(stderr).toBe('')
  return stdout.trim()
}

it('that of the package for this platform', () => {
  put(BUILT, PLATFORM, 'verbs.node')
  expect(load()).toBe(join(modules, PLATFORM, 'verbs.node'))
})

it('one that was built from source comes first', () => {
  put(BUILT, PLATFORM, 'verbs.node')
  put(BUILT, '@rdmakit/verbs/build/Release/verbs.node')
  expect(load()).toBe(join(modules, '@rdmakit/verbs/build/Release/verbs.node'))
})

it('that of another C library where the first one cannot be loaded', () => {
  put(Buffer.from('of another system'), PLATFORM, 'verbs.node')
  put(BUILT, `${PLATFORM}-musl`, 'verbs.node')
  expect(load()).toBe(join(modules, `${PLATFORM}-musl`, 'verbs.node'))
})

it('none: what to install, and how to build it', () => {
  const said = load()
  expect(said).toMatch(/^MODULE_NOT_FOUND @rdmakit\/verbs: its native addon could not be loaded: neither /)
  expect(said).toContain(`neither ${PLATFORM} is installed`)
  expect(said).toContain('--omit=optional')
  const [, builder] = /run "node (\S+)" in the folder/.exec(said) ?? []
  expect(builder).toBe(join(modules, '@rdmakit/verbs/build-addons.mjs'))
  expect(existsSync(builder as string)).toBe(true)
  expect(said.split('\n')).toHaveLength(1)
})

it('one that cannot be loaded: what the dynamic linker says, and how to build it', () => {
  put(Buffer.from('of another system'), PLATFORM, 'verbs.node')
  expect(load()).toMatch(
    /verbs\.node: file too short\); to build it from source, run "node \/\S+\/build-addons\.mjs" /,
  )
})
