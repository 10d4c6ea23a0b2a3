// The addons' requirements of a system: libraries, versions of their symbols, the kernel. Checks the built addons;
// takes a second.
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { describe, expect, it, onTestFinished } from 'vitest'

const packages = fileURLToPath(new URL('../../..', import.meta.url))
const ADDONS = [
  'verbs/build/Release/verbs.node',
  'ring-transport/build/Release/ring_transport.node',
  'nbd-client/build/Release/nbd_client.node',
]
/** The requirements of Node.js 20 itself: RHEL 8's. */
const NEWEST: Record<string, number[]> = {
  GLIBC: [2, 28],
  GLIBCXX: [3, 4, 25],
  CXXABI: [1, 3, 11],
  GCC: [4, 8],
}
const LIBRARIES = /^(lib(c|stdc\+\+|gcc_s|pthread|dl|m)\.so\.[0-9]|ld-linux[a-z0-9-]*\.so\.[0-9])$/

function readelf(option: string, addon: string) {
  return execFileSync('readelf', [option, '--wide', join(packages, addon)], { encoding: 'utf8' }).split('\n')
}

function isNewer(version: string) {
  const [, prefix = '', numbers = ''] = /^([A-Z]+)_([0-9.]+)$/.exec(version) ?? []
  const [theirs, limit] = [numbers.split('.').map(Number), NEWEST[prefix]]
  if (limit === undefined) return true
  const at = theirs.findIndex((number, i) => number !== (limit[i] ?? 0))
  return at !== -1 && (theirs[at] ?? 0) > (limit[at] ?? 0)
}

/** Under sanitizers they are linked for this machine, and with a library that must come first. */
const published = process.env.RDMAKIT_COLLECT === undefined

describe.runIf(published).each(ADDONS)('%s', (addon) => {
  const symbols = readelf('--dyn-syms', addon)
    .map((line) => line.trim().split(/\s+/))
    .filter(({ length }) => length >= 8)
    .map(([, , , , binding, , section, name = '']) => ({ binding, section, name }))
  const wanted = symbols.filter(({ section }) => section === 'UND')

  it('is linked with the C and C++ libraries alone', () => {
    const needed = readelf('--dynamic', addon).flatMap(
      (line) => /NEEDED.*\[(.*)\]/.exec(line)?.slice(1) ?? [],
    )
    expect(needed).toContain('libc.so.6')
    expect(needed.filter((name) => !LIBRARIES.test(name))).toEqual([])
  })

  it('wants no newer version of a symbol than Node.js itself', () => {
    const versions = new Set(wanted.flatMap(({ name }) => /@+(.*)$/.exec(name)?.slice(1) ?? []))
    expect(versions.size).toBeGreaterThan(5)
    expect([...versions].filter(isNewer)).toEqual([])
  })

  it("wants nothing without a version but Node.js's own", () => {
    const bare = wanted.filter(({ name, binding }) => !name.includes('@') && binding === 'GLOBAL')
    expect(bare.map(({ name }) => name).filter((name) => !/^(napi|node_api|uv)_/.test(name))).toEqual([])
  })

  it('offers only what Node.js looks for', () => {
    const offered = symbols.filter(({ section, binding }) => section !== 'UND' && binding !== 'LOCAL')
    const names = offered.map(({ name }) => name).filter((name) => name !== 'Name')
    expect(names.sort()).toEqual(['napi_register_module_v1', 'node_api_module_get_api_version_v1'])
  })
})

const WITHOUT_SEAL = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#define FUTURE_WRITE 0x10
#define REPLACE(name) int name(int fd, int command, ...) { \\
  va_list rest; va_start(rest, command); void* given = va_arg(rest, void*); va_end(rest); \\
  if (command == F_ADD_SEALS && ((long)given & FUTURE_WRITE)) { errno = EINVAL; return -1; } \\
  return ((int (*)(int, int, void*))dlsym(RTLD_NEXT, #name))(fd, command, given); }
REPLACE(fcntl)
REPLACE(fcntl64)
`

it.runIf(published)('shm:// on a kernel before 5.1: refused, with what to do; iwarp:// goes on', () => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-seal-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const library = join(folder, 'seal.so')
  execFileSync('cc', ['-shared', '-fPIC', '-x', 'c', '-o', library, '-'], { input: WITHOUT_SEAL })
  const script = `
    import { listDevices, openDevice, providerProblem, Listener } from '${pathToFileURL(join(packages, 'verbs/dist/index.js'))}'
    console.log(providerProblem('shm'))
    console.log(listDevices().some(({ provider }) => provider === 'shm'))
    try { openDevice('shm', 'shm') } catch ({ code, message }) { console.log(code, message) }
    await Listener.listen('shm://${folder}/a.sock', () => {}).catch(({ code, message }) => console.log(code, message))
    const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
    console.log(listener.uri)
    listener.close()`
  const { stdout, stderr, status } = spawnSync(process.execPath, ['--input-type=module', '--eval', script], {
    encoding: 'utf8',
    env: { ...process.env, LD_PRELOAD: library },
  })
  expect({ stderr, status }).toEqual({ stderr: '', status: 0 })
  const [problem, listed, opened, listened, other] = stdout.trim().split('\n')
  expect(problem).toMatch(/^shm:\/\/ needs Linux 5\.1, .*; use iwarp:\/\/$/)
  expect(listed).toBe('false')
  expect(opened).toMatch(/^EOPNOTSUPP /)
  expect(opened).toContain(problem)
  expect(listened).toContain(problem)
  expect(listened).toMatch(/^EOPNOTSUPP /)
  expect(other).toMatch(/^iwarp:/)
})
