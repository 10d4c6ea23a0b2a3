import { statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InvalidInputError } from '../command-line/invalid-input-error.js'
import { exposureOfFile } from '../files/folder-exposure.js'
import { checkFilePath, MAXIMUM_SOCKET_PATH, makeFolder } from '../files/paths.js'

/** how messages name it, with what sets it */
const RUN_FOLDER = 'the folder for control sockets (RDMAKIT_RUN)'

/** The names that a program may try for its control socket, of which other PID namespaces have the others. */
export const MOST_NAMES = 99

/** With the longest name of a program, and the greatest number of a process (proc(5): pid_max). */
const LONGEST_NAME = controlSocketName('swap-server', 2 ** 22, MOST_NAMES)

/** @param turn from 1 on: another one if the first is taken */
export function controlSocketName(program: string, pid: number, turn: number): string {
  return `${program}-${pid}${turn === 1 ? '' : `.${turn}`}.sock`
}

/** Where running programs leave their control sockets, and attach its state: `$RDMAKIT_RUN`, else /run/rdmakit for root. */
export function runtimeDirectory(): string {
  if (process.env.RDMAKIT_RUN) return process.env.RDMAKIT_RUN
  if (process.getuid?.() === 0) return '/run/rdmakit'
  return join(process.env.XDG_RUNTIME_DIR || join(tmpdir(), `rdmakit-${process.getuid?.()}`), 'rdmakit')
}

/**
 * Makes it if it is missing.
 * @returns its path
 * @throws InvalidInputError when it is, or may become, somebody else's, or is too long for the path of a socket
 */
export function openRuntimeDirectory(): string {
  const directory = runtimeDirectory()
  checkLength(directory)
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

/** Whatever process comes to use it: one with a longer number, too. */
function checkLength(directory: string): void {
  const excess = Buffer.byteLength(join(directory, LONGEST_NAME)) - MAXIMUM_SOCKET_PATH
  if (excess > 0)
    throw new InvalidInputError(
      `${RUN_FOLDER} ${directory} is ${excess} bytes too long for the path of a socket; set RDMAKIT_RUN to a shorter one`,
    )
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
