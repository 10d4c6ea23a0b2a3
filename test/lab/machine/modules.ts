import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { NoGuestError } from '../base/errors.js'
import { LocalShell } from '../base/local-shell.js'
import { cache } from '../base/paths.js'
import type { Kernel } from './kernel.js'

const shell = new LocalShell()

/** Files of modules, which guests see at the same paths. */
export interface Modules {
  /** the iWARP driver */
  siw: string
  /** the driver of block devices in user space */
  ublk: string
}

/** Where the sources are, and what make is to be told. */
const drivers = [
  { name: 'siw', folder: 'drivers/infiniband/sw/siw', sources: '', options: ['CONFIG_RDMA_SIW=m'] },
  { name: 'ublk_drv', folder: 'drivers/block', sources: '/ublk_drv.c', options: [] },
] as const

/**
 * What Debian's kernel is built without and Debian's source of the same version has. Compiled once for a kernel,
 * against its headers, none of which gets installed.
 */
export async function ensureModules(kernel: Kernel, say: (line: string) => void): Promise<Modules> {
  const folder = join(cache, 'modules')
  const [siw, ublk] = drivers.map(({ name }) => join(folder, `${name}-${kernel.version}.ko`)) as [
    string,
    string,
  ]
  if (existsSync(siw) && existsSync(ublk)) return { siw, ublk }

  await mkdir(folder, { recursive: true })
  const work = await mkdtemp(join(folder, 'compiling-'))
  try {
    const { headers, source } = await fetchPackages(kernel.version, work, say)
    const wanted = drivers.map(({ folder, sources }) => `'${source}/${folder}${sources}'`)
    await shell.run(
      `dpkg --fsys-tarfile ${source}_*.deb | tar -xO ./usr/src/${source}.tar.xz | xz -dc |
       tar -x --strip-components=1 ${wanted.join(' ')}`,
      { cwd: work, deadlineMs: 120_000 },
    )
    await writeFile(join(work, 'drivers/block/Kbuild'), 'obj-m := ublk_drv.o\n')
    for (const { name, folder: driver, options } of drivers) {
      say(`compiling ${name}.ko`)
      await shell.run(['make', '-C', headers, `M=${join(work, driver)}`, ...options, 'modules'], {
        deadlineMs: 240_000,
      })
      const built = join(work, driver, `${name}.ko`)
      await shell.run(['strip', '--strip-debug', built])
      await rename(built, join(folder, `${name}-${kernel.version}.ko`))
    }
    return { siw, ublk }
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

/**
 * Of the versions of a package, newest first, the one for headers of version `wanted`: the same, or the newest Debian
 * revision of the same kernel. For some hours after a security update the archive has the tools of the new revision, and
 * no others, while the kernel of the new one is not signed yet.
 */
export function versionFor(wanted: string, versions: readonly string[]): string {
  if (versions.includes(wanted)) return wanted
  const kernel = wanted.slice(0, wanted.lastIndexOf('-') + 1)
  return versions.find((version) => version.startsWith(kernel)) ?? wanted
}

/** Headers that modules are compiled against, unpacked in `work`, and the source's package beside them. */
async function fetchPackages(
  version: string,
  work: string,
  say: (line: string) => void,
): Promise<{ headers: string; source: string }> {
  const [, release, series] = /^((\d+\.\d+)\.\d+-\d+)-amd64$/.exec(version) ?? []
  if (release === undefined)
    throw new NoGuestError(`no modules for kernel ${version}: not one of Debian's names`)
  const unpacked = [`linux-headers-${version}`, `linux-headers-${release}-common`, `linux-kbuild-${series}`]
  const source = `linux-source-${series}`
  const shown = await shell.run(['apt-cache', 'show', '--no-all-versions', ...unpacked]).catch(() => '')
  const packageVersion = /^Version: (\S+)$/m.exec(shown)?.[1]
  if (packageVersion === undefined) {
    throw new NoGuestError(
      `no modules for kernel ${version}: apt does not know linux-headers-${version} ` +
        `(run apt-get update, or remove ${join(cache, 'kernel')} to get the kernel that it knows)`,
    )
  }
  say(`fetching the headers and the source of ${version} for siw and ublk (150 MB, once)`)
  const wanted = await Promise.all(
    [...unpacked, source].map(async (name) => {
      const listed = await shell.run(['apt-cache', 'madison', name])
      const versions = listed.split('\n').flatMap((line) => line.split('|')[1]?.trim() ?? [])
      return `${name}=${versionFor(packageVersion, versions)}`
    }),
  )
  const fetch = await shell.exec(['apt-get', '-o', 'APT::Sandbox::User=root', 'download', ...wanted], {
    cwd: work,
    deadlineMs: 240_000,
  })
  if (fetch.status !== 0) throw new NoGuestError(`no modules for kernel ${version}: ${fetch.stderr}`)
  for (const name of unpacked) {
    await shell.run(`dpkg -x ${name}_*.deb root`, { cwd: work, deadlineMs: 120_000 })
  }
  // The headers' only absolute path: to those that all of Debian's configurations share.
  const shared = join(work, 'root', 'usr', 'src')
  const headers = join(shared, `linux-headers-${version}`)
  await writeFile(join(headers, 'Makefile'), `include ${shared}/linux-headers-${release}-common/Makefile\n`)
  return { headers, source }
}
