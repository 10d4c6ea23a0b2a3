// An embedder that allows no ArrayBuffers over memory of an addon, as Electron: told when the package is loaded, with what
// to do. The addon is the real one, but for the name of the one function of Node-API, which says here what it says there.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { expect, it, onTestFinished } from 'vitest'

const packages = fileURLToPath(new URL('../../..', import.meta.url))
const NAME = 'napi_create_external_arraybuffer'
/** as long, for it takes the other's place in the addon's table of names */
const IN_ITS_PLACE = 'napi_forbids_external_arraybuffr'
const SOURCE = `int ${IN_ITS_PLACE}(void *env) { return 22; } // napi_no_external_buffers_allowed\n`

/** Loads `expression` where the function says so. */
function inSuchEmbedder(folder: string, expression: string) {
  const library = join(folder, 'embedder.so')
  execFileSync('cc', ['-shared', '-fPIC', '-x', 'c', '-o', library, '-'], { input: SOURCE })
  const words = ['--input-type=module', '--eval', expression]
  return spawnSync(process.execPath, words, {
    encoding: 'utf8',
    env: { ...process.env, LD_PRELOAD: [process.env.LD_PRELOAD, library].join(' ').trim() },
  })
}

function forbidden(addon: string, to: string) {
  const bytes = readFileSync(addon)
  const at = bytes.indexOf(`\0${NAME}\0`)
  expect(at).toBeGreaterThan(0)
  bytes.write(IN_ITS_PLACE, at + 1, 'latin1')
  writeFileSync(to, bytes)
}

/** Within the repository, so that other packages are found from there. */
function folderOfTest() {
  const folder = mkdtempSync(join(packages, 'verbs/build/embedder-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  return folder
}

it('the package says so when it is loaded, and what to do', () => {
  expect(IN_ITS_PLACE.length).toBe(NAME.length)
  const folder = folderOfTest()
  for (const part of ['package.json', 'dist'])
    cpSync(join(packages, 'verbs', part), join(folder, part), { recursive: true })
  mkdirSync(join(folder, 'build/Release'), { recursive: true })
  forbidden(join(packages, 'verbs/build/Release/verbs.node'), join(folder, 'build/Release/verbs.node'))
  const index = pathToFileURL(join(folder, 'dist/index.js'))
  const told = inSuchEmbedder(
    folder,
    `import('${index}').catch(({ code, message }) => console.log(code, message))`,
  )
  expect(told.stdout).toMatch(/^EOPNOTSUPP @rdmakit\/verbs: .*Electron; run this in a process of Node\.js/)
  expect(told.stdout).not.toContain('npm run build')
  expect(told).toMatchObject({ status: 0, stderr: '' })
})

it.each([
  ['verbs', 'verbs'],
  ['ring-transport', 'ring_transport'],
])('so does the addon of %s itself', (name, addon) => {
  const folder = folderOfTest()
  const file = join(folder, 'addon.node')
  forbidden(join(packages, name, `build/Release/${addon}.node`), file)
  const load = `import { createRequire } from 'node:module'
    try { createRequire('${file}')('${file}'); console.log('loaded') } catch ({ code }) { console.log(code) }`
  expect(inSuchEmbedder(folder, load)).toMatchObject({ status: 0, stdout: 'EOPNOTSUPP\n' })
})
