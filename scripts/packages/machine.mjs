// Machines to try packages on: a root folder with namespaces of its own. An empty one has Node.js, what Node.js is linked
// with, and env(1), which finds it for a program's first line: no shell, no compiler, no library of RDMA. Or a
// distribution's, as debootstrap(8) makes it.
import { execFileSync, spawn } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

const NODE = '/usr/local/bin/node'
const ENV = '/usr/bin/env'

/** @returns the paths of the libraries that a program is linked with */
function librariesOf(program) {
  const text = execFileSync('ldd', [program], { encoding: 'utf8' })
  return [...text.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path]) => path)
}

/** Makes an empty machine for `node` in `root`. */
export function emptyMachine(root, node) {
  rmSync(root, { recursive: true, force: true })
  for (const path of [ENV, ...librariesOf(node), ...librariesOf(ENV)]) copy(path, join(root, path))
}

/** The same of a machine of another kind. */
export function emulatedMachine(root, { env, libraries }) {
  rmSync(root, { recursive: true, force: true })
  copy(env, join(root, ENV))
  for (const path of libraries) copy(path, join(root, 'lib', basename(path)))
}

function copy(path, place) {
  mkdirSync(dirname(place), { recursive: true })
  copyFileSync(path, place)
}

/** Has qemu-user run programs for 64-bit ARM, in these namespaces alone (binfmt_misc is theirs since Linux 6.7). */
const EMULATION = [
  'mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc',
  'cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register',
]

/**
 * Runs a program of Node.js on a machine, with addresses of its own (loopback alone), processes of its own, and /proc, /dev
 * and /tmp. As root, or where a user may make namespaces.
 * @param {object} options
 * @param {string} options.root
 * @param {string} options.node the program, which is there as `node`
 * @param {Record<string, string>} options.mounts what of this machine is there, under which path; it can be written to
 * @param {string} options.folder where it starts
 * @param {boolean} [options.emulate] its programs are for 64-bit ARM
 * @param {string[]} words Node's arguments
 * @param {number} timeoutMs
 * @returns {Promise<number | string>} its exit status, or what ended it
 */
export function runOn({ root, node, mounts, folder, emulate = false }, words, timeoutMs) {
  const lines = ['set -e', 'ip link set lo up', ...(emulate ? EMULATION : [])]
  const mount = (what, path) => {
    const at = join(root, path)
    if (!existsSync(at)) {
      mkdirSync(dirname(at), { recursive: true })
      if (what.isFile) writeFileSync(at, '')
      else mkdirSync(at)
    }
    lines.push(`mount ${what.words} '${at}'`)
  }
  mount({ words: '-t proc proc' }, '/proc')
  mount({ words: '-t tmpfs tmpfs' }, '/tmp')
  mount({ words: '-t tmpfs tmpfs' }, '/root')
  for (const device of ['null', 'zero', 'urandom'])
    mount({ words: `--bind /dev/${device}`, isFile: true }, `/dev/${device}`)
  mount({ words: `--bind '${node}'`, isFile: true }, NODE)
  for (const [path, from] of Object.entries(mounts)) mount({ words: `--bind '${from}'` }, path)
  const environment = ['-i', '-C', folder, `PATH=${dirname(NODE)}`, 'HOME=/root', 'CI=true']
  lines.push(`exec chroot '${root}' ${ENV} ${environment.join(' ')} ${NODE} "$@"`)
  const spaces = ['--mount', '--net', '--pid', '--fork', '--kill-child']
  if (emulate || process.getuid() !== 0) spaces.push('--map-root-user')
  return new Promise((resolve, reject) => {
    const child = spawn('unshare', [...spaces, '--', 'sh', '-c', lines.join('\n'), 'sh', ...words], {
      stdio: ['ignore', 'inherit', 'inherit'],
    })
    const timer = setTimeout(() => child.kill('SIGKILL'), timeoutMs)
    child.once('error', reject)
    child.once('close', (status, signal) => {
      clearTimeout(timer)
      resolve(status ?? `ended by ${signal} after ${timeoutMs / 1000} s`)
    })
  })
}
