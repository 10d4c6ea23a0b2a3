import { UsageError } from '@rdmakit/verbs'
import { presenceOf } from '../kernel/device-identity.js'
import { isSwap } from '../kernel/swap.js'
import { say } from '../report/log.js'
import type { Predecessor } from '../upgrade/predecessor.js'
import { StateFolder } from '../upgrade/state-folder.js'
import type { AttachOptions } from './attach-options.js'
import { checkSame } from './same-device.js'
import { takeOverDevice } from './take-over-device.js'

/** Continues with a device that another process hands over, or takes it over if that process dies in the attempt. */
export async function inheritDevice(
  options: AttachOptions,
  state: string,
  predecessor: Predecessor,
): Promise<number> {
  const kept = StateFolder.look(state)
  if (kept?.device === undefined) throw new UsageError(`${state} holds no device that could be handed over`)
  // Whatever is wrong with the command line must show now, while the device is served.
  const path = checkSame(options, state, kept, kept.device)
  if (options.swap && !isSwap(path))
    throw new UsageError(`${path} is not swap; detach it and attach it again, empty, to make it swap`)
  const inheritance = await predecessor.inheritance(options.signal)
  const folder = inheritance ? StateFolder.inherit(state, inheritance.lock) : StateFolder.open(state)
  try {
    if (inheritance !== undefined)
      return await takeOverDevice(options, folder, kept.device, { predecessor, inheritance })
    if (folder.read() === undefined || presenceOf(kept.device) !== 'there')
      throw new Error(`${path} ended before it was handed over`)
    say(`taking over ${path}: its process ended before the hand-over`)
    return await takeOverDevice(options, folder, kept.device)
  } finally {
    folder.close()
  }
}
