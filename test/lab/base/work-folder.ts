import { existsSync } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A folder for sockets, consoles and disks, to be removed by the caller. */
export async function makeWorkFolder(name: string): Promise<string> {
  await removeAbandoned()
  return await mkdtemp(join(tmpdir(), `rdmakit-lab-${process.pid}-${name}-`))
}

/** Folders of processes that were killed before they could tidy up. */
async function removeAbandoned(): Promise<void> {
  for (const folder of await readdir(tmpdir())) {
    const [, pid] = /^rdmakit-lab-(\d+)-/.exec(folder) ?? []
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) {
      await rm(join(tmpdir(), folder), { recursive: true, force: true })
    }
  }
}
