import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { chmod, copyFile, mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { LocalShell } from '../base/local-shell.js'
import { cache, guestScripts } from '../base/paths.js'
import type { Kernel } from './kernel.js'

/** What it takes to mount the host's files and to reach the agent; all else loads from there. */
const earlyModules = ['virtio_pci', 'virtio_console', '9pnet_virtio', '9p', 'overlay']

/** The initramfs: busybox, the early modules in the order they load, and guest/init. */
export async function ensureInitramfs(kernel: Kernel): Promise<string> {
  const init = join(guestScripts, 'init')
  const identity = createHash('sha256')
    .update(readFileSync(init))
    .update(earlyModules.join(' '))
    .digest('hex')
  const folder = join(cache, 'initramfs')
  const file = join(folder, `${kernel.version}-${identity.slice(0, 16)}.cpio`)
  if (existsSync(file)) return file

  await mkdir(folder, { recursive: true })
  const work = await mkdtemp(join(folder, 'building-'))
  try {
    const tree = join(work, 'tree')
    for (const name of ['bin', 'dev', 'proc', 'modules', 'host', 'overlay', 'root']) {
      await mkdir(join(tree, name), { recursive: true })
    }
    await copyFile('/bin/busybox', join(tree, 'bin', 'busybox'))
    await copyFile(init, join(tree, 'init'))
    await chmod(join(tree, 'init'), 0o755)
    const modules = await moduleFiles(kernel)
    for (const module of modules) await copyFile(module, join(tree, 'modules', basename(module)))
    await writeFile(join(tree, 'modules', 'order'), modules.map((module) => `${basename(module)}\n`).join(''))

    // Not compressed: QEMU copies it in no time, an emulated processor would unpack it slowly.
    const archive = join(work, 'initramfs.cpio')
    await new LocalShell().run(`find . | cpio -o -H newc --quiet >'${archive}'`, { cwd: tree })
    await rename(archive, file)
    return file
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

async function moduleFiles(kernel: Kernel): Promise<string[]> {
  const files = new Set<string>()
  for (const module of earlyModules) {
    const shown = await new LocalShell().run([
      ...['modprobe', '-C', '/dev/null', '-d', kernel.root, '-S', kernel.version],
      ...['--show-depends', module],
    ])
    for (const [, file] of shown.matchAll(/^insmod (.+\.ko)/gm)) if (file !== undefined) files.add(file)
  }
  return [...files]
}
