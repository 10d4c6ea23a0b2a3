import { statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InvalidInputError } from '../command-line/invalid-input-error.js'
import { exposureOfFile } from '../files/folder-exposure.js'
import { checkFilePath, makeFolder } from '../files/paths.js'

/** how messages name it, with what sets it */
const RUN_FOLDER = 'the folder for control sockets (RDMAKIT_RUN)'

/** Where running programs leave their control sockets, and attach its state: `$RDMAKIT_RUN`, else /run/rdmakit for root. */
export function runtimeDirectory(): string {
  if (process.env.RDMAKIT_RUN) return process.env.RDMAKIT_RUN
  if (process.getuid?.() === 0) return '/run/rdmakit'
  return join(process.env.XDG_RUNTIME_DIR ?? join(tmpdir(), `rdmakit-${process.getuid?.()}`), 'rdmakit')
}

/** Makes it if it is missing. @returns its path @throws InvalidInputError when it is, or may become, somebody else's */
export function openRuntimeDirectory(): string {
  const directory = runtimeDirectory()
  makeFolder(directory, RUN_FOLDER)
  checkDirectory(directory)
  checkFilePath(join(directory, 'any.sock'), RUN_FOLDER)
  return directory
}

/**
 * Checks what `$RDMAKIT_RUN` says, before anything else is done. Where it says nothing, whoever needs the folder has to say
 * what lacks without it.
 * @throws InvalidInputError, ExitError
 */
export function checkRuntimeDirectory(): void {
  if (process.env.RDMAKIT_RUN) openRuntimeDirectory()
}

/** A user who may write to the folder can replace our socket, or the folder below. */
export function checkDirectory(directory: string): void {
  const status = statSync(directory)
  if (!status.isDirectory())
    throw new InvalidInputError(
      `${directory}, for control sockets, is not a folder; set RDMAKIT_RUN to another`,
    )
  const { uid, mode } = status
  if (uid !== process.geteuid?.() && uid !== 0)
    throw new InvalidInputError(
      `${directory}, for control sockets, belongs to user ${uid}; set RDMAKIT_RUN to another`,
    )
  if ((mode & 0o022) !== 0)
    throw new InvalidInputError(
      `${directory}, for control sockets, can be written by others; "chmod 700 ${directory}"`,
    )
  const exposure = exposureOfFile(directory)
  if (exposure !== undefined)
    throw new InvalidInputError(
      `${directory}, for control sockets, is not safe: ${exposure}, or set RDMAKIT_RUN to another`,
    )
}
