import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { NoGuestError } from '../base/errors.js'
import { LocalShell } from '../base/local-shell.js'
import { cache } from '../base/paths.js'

/** A Debian kernel, unpacked and never installed: its postinst wants a boot loader. */
export interface Kernel {
  version: string
  /** Folder that holds lib/modules/VERSION. */
  root: string
  /** What QEMU boots. */
  image: string
}

/** The kernel in the cache, fetched from Debian's mirror the first time. */
export async function ensureKernel(say: (line: string) => void): Promise<Kernel> {
  const kernels = join(cache, 'kernel')
  await mkdir(kernels, { recursive: true })
  const cached = (await readdir(kernels)).filter((name) => /^\d/.test(name)).sort()
  const newest = cached.at(-1)
  if (newest !== undefined) return describe(newest, join(kernels, newest))

  const shell = new LocalShell()
  const depends = await shell.run(['apt-cache', 'depends', 'linux-image-amd64']).catch(() => '')
  const name = /Depends: (linux-image-\S+)/.exec(depends)?.[1]
  if (name === undefined) {
    throw new NoGuestError('no kernel for a guest: apt knows no linux-image-amd64 (run apt-get update)')
  }
  say(`fetching ${name}`)
  const work = await mkdtemp(join(kernels, 'unpacking-'))
  try {
    const fetch = await shell.exec(['apt-get', '-o', 'APT::Sandbox::User=root', 'download', name], {
      cwd: work,
      deadlineMs: 240_000,
    })
    if (fetch.status !== 0) throw new NoGuestError(`no kernel for a guest: ${fetch.stderr}`)
    await shell.run(`dpkg -x ${name}_*.deb root`, { cwd: work, deadlineMs: 120_000 })
    const root = join(work, 'root')
    const version = name.replace('linux-image-', '')
    if (!(await readdir(root)).includes('lib')) await symlink('usr/lib', join(root, 'lib'))
    await shell.run(['depmod', '-b', root, version], { deadlineMs: 120_000 })
    await writeFile(join(root, 'vmlinux'), uncompressed(join(root, 'boot', `vmlinuz-${version}`)))
    // Another process that unpacked it at the same time did the same work: one of the two stays.
    await rename(root, join(kernels, version)).catch(() => {})
    return describe(version, join(kernels, version))
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

function describe(version: string, root: string): Kernel {
  return { version, root, image: join(root, 'vmlinux') }
}

/**
 * The ELF kernel inside a bzImage. An emulated guest takes over 3 s to decompress it by itself;
 * QEMU enters the ELF file directly through its PVH entry point.
 * Offsets: Documentation/arch/x86/boot.rst, fields setup_sects, payload_offset, payload_length.
 */
function uncompressed(bzImage: string): Buffer {
  const image = readFileSync(bzImage)
  const protectedMode = (image.readUInt8(0x1f1) + 1) * 512
  const start = protectedMode + image.readUInt32LE(0x248)
  const payload = image.subarray(start, start + image.readUInt32LE(0x24c))
  const xz = spawnSync('xz', ['-dc', '--single-stream'], { input: payload, maxBuffer: 512 << 20 })
  if (xz.stdout.subarray(0, 4).toString('latin1') !== '\x7fELF') {
    throw new NoGuestError(`${bzImage} holds no xz-compressed kernel: ${xz.stderr}`)
  }
  return xz.stdout
}
