import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The repository's top folder, found from wherever this file was built to. */
export const top = findTop(dirname(fileURLToPath(import.meta.url)))

/** What is fetched or built once and kept: the guest's kernel, its initramfs, small programs. */
export const cache = process.env.RDMAKIT_CACHE ?? join(homedir(), '.cache', 'rdmakit')

/** Shell scripts and sources of the guest's side. */
export const guestScripts = join(top, 'test', 'lab', 'guest')

function findTop(folder: string): string {
  if (existsSync(join(folder, 'package-lock.json'))) return folder
  const parent = dirname(folder)
  if (parent === folder) throw new Error('the lab must run from a checkout of the repository')
  return findTop(parent)
}
