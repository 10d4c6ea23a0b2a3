import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'
import { EXIT, ExitError } from '../command-line/exit-status.js'
import { exposureOfFile } from './folder-exposure.js'

/** Bytes of a file: enough for thousands of tenants. */
const MAXIMUM_FILE = 16 * 2 ** 20

export interface ReadFile {
  readonly text: string
  /** Why it may not hold secrets; undefined when only its owner can read it. */
  readonly exposed: string | undefined
}

/**
 * Reads a small file of the operator's, and says whether secrets are safe there.
 * @throws ExitError with `EXIT.configuration` when it cannot be read, or when others may write to it or put another in its place
 */
export function readOperatorFile(path: string, what: string): ReadFile {
  let descriptor: number
  try {
    // Not waiting for a writer, should it be a pipe.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (failure) {
    throw unfit(`${what} ${path} cannot be read: ${reasonOf(failure)}`)
  }
  try {
    // Of the opened file, because the path may name another one a moment later.
    const { mode, uid, size } = fstatSync(descriptor)
    if ((mode & constants.S_IFMT) !== constants.S_IFREG) throw unfit(`${what} ${path} is not a file`)
    if (size > MAXIMUM_FILE) throw unfit(`${what} ${path} is above ${MAXIMUM_FILE} bytes`)
    if ((mode & 0o022) !== 0) throw unfit(`${what} ${path} can be written by others; "chmod 600 ${path}"`)
    const me = process.geteuid?.() ?? 0
    if (uid !== me && uid !== 0) throw unfit(`${what} ${path} belongs to user ${uid}; "chown ${me} ${path}"`)
    const place = exposureOfFile(path)
    if (place !== undefined) throw unfit(`${what} ${path} can be replaced by others: ${place}`)
    const exposed =
      (mode & 0o077) === 0
        ? undefined
        : `others have access (mode ${(mode & 0o777).toString(8)}); "chmod 600 ${path}"`
    return { text: readFileSync(descriptor, 'utf8'), exposed }
  } finally {
    closeSync(descriptor)
  }
}

function unfit(why: string): ExitError {
  return new ExitError(why, EXIT.configuration)
}

function reasonOf(failure: unknown): string {
  const { code, message } = failure as NodeJS.ErrnoException
  return code === 'ENOENT' ? 'there is no such file' : (code ?? message)
}
