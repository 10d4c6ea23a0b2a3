import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { NoGuestError } from './errors.js'
import type { Kernel } from './kernel.js'
import { LocalShell } from './local-shell.js'
import { cache } from './paths.js'

const shell = new LocalShell()

/**
 * The kernel's iWARP driver, siw.ko: Debian's kernel is built without it, Debian's source of the same
 * version has it. Compiled once for a kernel, against its headers, none of which gets installed.
 */
export async function ensureSiw(kernel: Kernel, say: (line: string) => void): Promise<string> {
  const folder = join(cache, 'siw')
  const file = join(folder, `siw-${kernel.version}.ko`)
  if (existsSync(file)) return file

  await mkdir(folder, { recursive: true })
  const work = await mkdtemp(join(folder, 'compiling-'))
  try {
    const { headers, source } = await fetchPackages(kernel.version, work, say)
    say('compiling siw.ko')
    const driver = 'drivers/infiniband/sw/siw'
    await shell.run(
      `dpkg --fsys-tarfile ${source}_*.deb | tar -xO ./usr/src/${source}.tar.xz | xz -dc |
       tar -x --strip-components=1 '${source}/${driver}'`,
      { cwd: work, deadlineMs: 120_000 },
    )
    await shell.run(['make', '-C', headers, `M=${join(work, driver)}`, 'CONFIG_RDMA_SIW=m', 'modules'], {
      deadlineMs: 240_000,
    })
    const built = join(work, driver, 'siw.ko')
    await shell.run(['strip', '--strip-debug', built])
    await rename(built, file)
    return file
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

/** Headers that modules are compiled against, unpacked in `work`, and the source's package beside them. */
async function fetchPackages(
  version: string,
  work: string,
  say: (line: string) => void,
): Promise<{ headers: string; source: string }> {
  const [, release, series] = /^((\d+\.\d+)\.\d+-\d+)-amd64$/.exec(version) ?? []
  if (release === undefined) throw new NoGuestError(`no siw for kernel ${version}: not one of Debian's names`)
  const unpacked = [`linux-headers-${version}`, `linux-headers-${release}-common`, `linux-kbuild-${series}`]
  const source = `linux-source-${series}`
  const shown = await shell.run(['apt-cache', 'show', '--no-all-versions', ...unpacked]).catch(() => '')
  const packageVersion = /^Version: (\S+)$/m.exec(shown)?.[1]
  if (packageVersion === undefined) {
    throw new NoGuestError(
      `no siw for kernel ${version}: apt does not know linux-headers-${version} ` +
        `(run apt-get update, or remove ${join(cache, 'kernel')} to get the kernel that it knows)`,
    )
  }
  say(`fetching the headers and the source of ${version} for siw (150 MB, once)`)
  const wanted = [...unpacked, source].map((name) => `${name}=${packageVersion}`)
  const fetch = await shell.exec(['apt-get', '-o', 'APT::Sandbox::User=root', 'download', ...wanted], {
    cwd: work,
    deadlineMs: 240_000,
  })
  if (fetch.status !== 0) throw new NoGuestError(`no siw for kernel ${version}: ${fetch.stderr}`)
  for (const name of unpacked) {
    await shell.run(`dpkg -x ${name}_*.deb root`, { cwd: work, deadlineMs: 120_000 })
  }
  // The headers' only absolute path: to those that all of Debian's configurations share.
  const shared = join(work, 'root', 'usr', 'src')
  const headers = join(shared, `linux-headers-${version}`)
  await writeFile(join(headers, 'Makefile'), `include ${shared}/linux-headers-${release}-common/Makefile\n`)
  return { headers, source }
}
