import { spawnSync } from 'node:child_process'
import { NoGuestError } from '../base/errors.js'

/** What booting a guest and running the lab's tests in it takes, as Debian packages. */
export const labPackages = [
  'qemu-system-x86',
  'busybox-static',
  'cpio',
  'kmod',
  'iproute2',
  'xz-utils',
  'g++',
  'make',
  // objtool, which every module's compilation runs
  'libelf1',
  'rdma-core',
  'ibverbs-providers',
  'ibverbs-utils',
  'rdmacm-utils',
  'perftest',
  'nbdkit',
  'nbd-client',
  'open-iscsi',
  'curl',
  'e2fsprogs',
  'stress-ng',
] as const

export function missingPackages(): string[] {
  // biome-ignore lint/suspicious/noTemplateCurlyInString: dpkg's own notation
  const format = '${Package} ${db:Status-Status}\n'
  const query = spawnSync('dpkg-query', ['-W', '-f', format, ...labPackages], { encoding: 'utf8' })
  if (query.error) throw new NoGuestError('the lab needs Debian 12: there is no dpkg-query here')
  const installed = new Set(query.stdout.split('\n').filter((line) => line.endsWith(' installed')))
  return labPackages.filter((name) => !installed.has(`${name} installed`))
}

/** Installs what is missing when run as root; otherwise says which command does. */
export function ensurePackages(say: (line: string) => void): void {
  const missing = missingPackages()
  if (missing.length === 0) return
  const install = ['install', '-y', '--no-install-recommends', ...missing]
  if (process.getuid?.() !== 0) {
    throw new NoGuestError(`the lab needs packages, install them with: sudo apt-get ${install.join(' ')}`)
  }
  say(`installing ${missing.join(' ')}`)
  for (const args of [['update'], install]) {
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
    const apt = spawnSync('apt-get', ['-q', ...args], { encoding: 'utf8', env, timeout: 300_000 })
    if (apt.status !== 0) {
      throw new NoGuestError(
        `the lab's packages cannot be installed: apt-get ${args.join(' ')}:\n${apt.stderr}`,
      )
    }
  }
}
