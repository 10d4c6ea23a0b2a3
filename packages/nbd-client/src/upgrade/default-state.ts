import { existsSync, readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import { EXIT, ExitError, openRuntimeDirectory } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import { presenceOf } from '../kernel/device-identity.js'
import { isOwnState, ownStateDirectory, ownStateName, type VolumeIdentity } from './default-state-names.js'
import { StateFolder } from './state-folder.js'
import type { KeptDevice } from './volume-json.js'

/**
 * Opens the folder of an attach that was given none: with the state of a device that this command line has attached
 * before and that has lost its process, else one that is free. A second volume of the same command line gets a second
 * folder.
 * @param exists whether the kernel has the device still
 * @throws ExitError: the device that was named has a process; as {@link StateFolder.open} and {@link StateFolder.read}
 */
export function openOwnState(identity: VolumeIdentity, exists = isThere): StateFolder {
  const name = ownStateName(identity)
  const directory = ownStateDirectory()
  openRuntimeDirectory()
  if (identity.device !== undefined) {
    const folder = openUnlessTaken(join(directory, name))
    if (folder !== undefined) return folder
    throw new ExitError(
      `${identity.device} is busy: another nbd-client has it; choose another --device, or "nbd-client detach ${identity.device}"`,
      EXIT.taken,
    )
  }
  const numbers = numbersOf(directory, name)
  let free: StateFolder | undefined
  for (const number of numbers) {
    const folder = openUnlessTaken(join(directory, `${name}-${number}`))
    if (folder === undefined) continue
    if (isLeftBehind(folder, exists)) {
      free?.close()
      return folder
    }
    if (free === undefined) free = folder
    else folder.close()
  }
  for (let number = 0; free === undefined; number++)
    if (!numbers.includes(number)) free = openUnlessTaken(join(directory, `${name}-${number}`))
  return free
}

/**
 * The folder of the process that hands over, for a successor whose command line names none.
 * @throws UsageError: a later start of that command line would not find it
 */
export function inheritedState(identity: VolumeIdentity, theirs: string | undefined): string {
  const name = theirs === undefined ? '' : basename(theirs).replace(/^([^-]+-[^-]+)-\d+$/, '$1')
  if (theirs !== undefined && isOwnState(theirs) && name === ownStateName(identity)) return theirs
  throw new UsageError(
    `this command line would not find the state of the running nbd-client again; add --state ${theirs ?? '<its folder>'}`,
  )
}

const isThere = (device: KeptDevice) => presenceOf(device) === 'there'

function numbersOf(directory: string, name: string): number[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory)
    .flatMap((entry) => (entry.startsWith(`${name}-`) ? entry.slice(name.length + 1) : []))
    .filter((rest) => /^\d+$/.test(rest))
    .map(Number)
    .sort((a, b) => a - b)
}

/** It keeps a volume whose device no process serves: we have the lock. */
function isLeftBehind(folder: StateFolder, exists: typeof isThere): boolean {
  try {
    const device = folder.read()?.device
    return device !== undefined && exists(device)
  } catch (failure) {
    folder.close()
    throw failure
  }
}

function openUnlessTaken(path: string): StateFolder | undefined {
  try {
    return StateFolder.open(path)
  } catch (failure) {
    if (failure instanceof ExitError && failure.status === EXIT.taken) return undefined
    throw failure
  }
}
