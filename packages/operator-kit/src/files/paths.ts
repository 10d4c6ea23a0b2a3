import { accessSync, constants, existsSync, mkdirSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { EXIT, ExitError } from '../command-line/exit-status.js'

/** Bytes of a Unix socket's path (unix(7): sun_path, with a zero at its end). */
export const MAXIMUM_SOCKET_PATH = 107

const WORDS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file or folder',
  ENOTDIR: 'a part of its path is not a folder',
  EISDIR: 'it is a folder',
  EEXIST: 'it already exists and is not a folder',
  EACCES: 'permission denied',
  EPERM: 'not permitted',
  EROFS: 'the file system is read-only',
  ENOSPC: 'the file system is full',
  ENAMETOOLONG: 'the path is too long',
  ELOOP: 'too many symbolic links',
}

/** What the system says of a file, in words: `there is no such file or folder (ENOENT)`. */
export function describeFileError(failure: unknown): string {
  const { code, message } = failure as NodeJS.ErrnoException
  const words = code === undefined ? undefined : WORDS[code]
  return words === undefined ? message : `${words} (${code})`
}

/** A place where nothing can be is a mistake of the command line, which a new start does not mend. */
function cannotBeMade(what: string, path: string, why: string, code?: string): ExitError {
  const status =
    code === 'EACCES' || code === 'EPERM' ? EXIT.forbidden : code === 'EEXIST' ? EXIT.taken : EXIT.usage
  return new ExitError(`${what} ${path}: ${why}`, status)
}

/**
 * Checks that there is a file at `path`, or that one can be made there, before anything else is done. Whether one that is
 * there is fit is for whoever opens it to say.
 * @param what names the option
 * @throws ExitError
 */
export function checkFilePath(path: string, what: string): void {
  if (!existsSync(path)) checkFolderOf(path, what)
}

/** That the folder of `path` is there, and this process may write to it. */
function checkFolderOf(path: string, what: string): void {
  const folder = dirname(resolve(path))
  let isFolder: boolean
  try {
    isFolder = statSync(folder).isDirectory()
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    const why =
      code === 'ENOENT'
        ? `the folder ${folder} does not exist; create it, or name another place`
        : `its folder ${folder}: ${describeFileError(failure)}`
    throw cannotBeMade(what, path, why, code)
  }
  if (!isFolder) throw cannotBeMade(what, path, `${folder} is not a folder; name another place`)
  try {
    accessSync(folder, constants.W_OK | constants.X_OK)
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    throw cannotBeMade(
      what,
      path,
      `nothing can be created in ${folder}: ${describeFileError(failure)}; name another place`,
      code,
    )
  }
}

/** The same of a Unix socket. What is there already may be a socket, which somebody has left. @throws ExitError */
export function checkSocketPath(path: string, what: string): void {
  const bytes = Buffer.byteLength(path)
  if (bytes === 0 || bytes > MAXIMUM_SOCKET_PATH)
    throw new ExitError(
      `${what} "${path}" has ${bytes} bytes, and the path of a socket 1 to ${MAXIMUM_SOCKET_PATH}; choose a shorter one`,
      EXIT.usage,
    )
  checkFolderOf(path, what)
  const there = statSync(path, { throwIfNoEntry: false })
  if (there !== undefined && !there.isSocket())
    throw cannotBeMade(what, path, 'it exists and is not a socket; name another path', 'EEXIST')
}

/**
 * Makes a folder of mode 0700, and those above it. What is there already stays as it is.
 * @param what names the option
 * @throws ExitError: it cannot be made, or something else is there
 */
export function makeFolder(path: string, what: string): void {
  try {
    makeWithParents(resolve(path))
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    throw cannotBeMade(
      what,
      path,
      code === 'EEXIST' || code === 'ENOTDIR'
        ? 'it must be a folder, and a file is there; name another'
        : `the folder cannot be created: ${describeFileError(failure)}; name another`,
      code === 'ENOTDIR' ? 'EEXIST' : code,
    )
  }
}

/**
 * Node's own `recursive` has no end where a file system refuses to make anything with ENOENT, as /proc does.
 * https://github.com/nodejs/node/issues/27198
 */
function makeWithParents(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() === true) return
  const above = dirname(path)
  if (above !== path) makeWithParents(above)
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (failure) {
    // Another process has just made it.
    if ((failure as NodeJS.ErrnoException).code !== 'EEXIST' || !statSync(path).isDirectory()) throw failure
  }
}

/** Has a failure name the option that it comes from, once. What it is stays: its class, its code. @returns it */
export function nameOption(option: string, failure: unknown): unknown {
  if (failure instanceof Error && !failure.message.includes(option.split(' ')[0] as string))
    failure.message = `${option}: ${failure.message}`
  return failure
}
