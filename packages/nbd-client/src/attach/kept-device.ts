import { endKept } from '@rdmakit/remote-volume/internal'
import { UsageError } from '@rdmakit/verbs'
import { presenceOf } from '../kernel/device-identity.js'
import { say } from '../report/log.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { AttachOptions } from './attach-options.js'
import { endLeftOvers } from './left-over.js'
import { attachNew } from './new-device.js'
import { checkSame } from './same-device.js'
import { takeOverDevice } from './take-over-device.js'

/** Attaches with a folder: takes over the device that it keeps, where the kernel has that still, else makes a new one. */
export async function attachKept(options: AttachOptions, folder: StateFolder): Promise<number> {
  try {
    const kept = folder.read()
    if (kept?.device !== undefined && presenceOf(kept.device) === 'there') {
      const path = checkSame(options, folder.path, kept, kept.device)
      say(`taking over ${path}`)
      return await takeOverDevice(options, folder, kept.device)
    }
    if (kept?.served === true)
      throw new UsageError(`${folder.path} belongs to an export of serve; give the device its own --state`)
    if (kept !== undefined) {
      await endLeftOvers(kept)
      say(`${folder.path} belongs to a volume whose device is gone: starting with a new one`)
      await endKept(kept, { ...options.access, signal: options.signal }, say)
    }
    folder.clear()
    return await attachNew(options, folder)
  } finally {
    folder.close()
  }
}
