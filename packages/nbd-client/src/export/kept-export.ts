import { endKept } from '@rdmakit/remote-volume/internal'
import { ConfigurationError } from '@rdmakit/swap-server'
import { UsageError } from '@rdmakit/verbs'
import type { Volume } from '../engine/block-volume.js'
import { devicePath } from '../kernel/device-name.js'
import { say } from '../report/log.js'
import { type Boot, currentBoot, isOfBoot } from '../upgrade/boot.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import { openKept, takeUp } from './open-kept.js'
import type { Serving } from './serve-options.js'
import { serveVolume } from './serve-volume.js'

/** Serves the volume that a folder keeps, or a new one that it keeps from now on. @returns the process's exit status */
export async function serveKept(options: Serving, folder: StateFolder): Promise<number> {
  const kept = folder.read()
  if (kept?.device !== undefined || kept?.connecting !== undefined) {
    const device = kept.device === undefined ? 'a device' : devicePath(kept.device)
    throw new UsageError(`${folder.path} belongs to ${device}; give the export its own --state`)
  }
  const boot = currentBoot()
  if (kept?.served === true) checkBoot(folder, kept.boot, boot)
  let volume: Volume
  if (kept?.served === true) {
    volume = await takeUp(options, folder, kept, boot.id)
  } else {
    // One that ended before any client could write to it.
    if (kept !== undefined) await endKept(kept, { ...options.access, signal: options.signal }, say)
    folder.clear()
    volume = await openKept(options, folder, boot.id)
  }
  try {
    return await serveVolume(volume, options)
  } finally {
    // An end is one for this process: what clients have written they find again.
    await volume.leave()
  }
}

/** @throws ConfigurationError: the machine was restarted since, and the state of its disk at that time is unknown */
function checkBoot(folder: StateFolder, boot: string | undefined, now: Boot): void {
  if (isOfBoot(boot, folder.written, now, Date.now())) return
  throw new ConfigurationError(
    `${folder.path} belongs to an export from before this machine was rebooted: data that clients wrote and flushed may be missing in it, and would read as zeros; remove the folder's files to start with an empty volume`,
  )
}
