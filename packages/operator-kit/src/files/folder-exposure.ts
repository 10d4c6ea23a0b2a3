import { statSync } from 'node:fs'
import { dirname } from 'node:path'

/**
 * The reason why another user may replace a file in `folder`: it belongs to another user, or others may write
 * to it and it is not sticky, as /tmp is.
 * @returns a sentence with the remedy; undefined if no other user may
 */
export function exposureOfFolder(folder: string): string | undefined {
  const { uid, mode } = statSync(folder)
  if (uid !== process.geteuid?.() && uid !== 0) return `${folder} belongs to user ${uid}`
  if ((mode & 0o022) !== 0 && (mode & 0o1000) === 0)
    return `${folder} can be written by others; "chmod go-w ${folder}"`
  return undefined
}

/** The same of the folder that the file `path` is in. */
export function exposureOfFile(path: string): string | undefined {
  return exposureOfFolder(dirname(path))
}
