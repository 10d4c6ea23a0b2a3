import { closeSync, constants, openSync } from 'node:fs'
import { open } from 'node:fs/promises'

/**
 * A raw disk for one guest. Read and written past the host's page cache where the file system
 * allows it: a disk that is really the host's memory would flatter every comparison.
 */
export async function makeDisk(file: string, sizeMiB: number): Promise<{ file: string; direct: boolean }> {
  const handle = await open(file, 'w')
  await handle.truncate(sizeMiB * 1024 * 1024)
  await handle.close()
  try {
    closeSync(openSync(file, constants.O_RDWR | constants.O_DIRECT))
    return { file, direct: true }
  } catch {
    return { file, direct: false } // tmpfs
  }
}
