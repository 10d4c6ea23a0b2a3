import { AttachedDevice } from '../device/attached-device.js'
import { newLink } from '../device/new-link.js'
import type { Inheritance, Predecessor } from '../upgrade/predecessor.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { KeptDevice } from '../upgrade/volume-json.js'
import type { AttachOptions } from './attach-options.js'
import { successionOf } from './succession.js'

/** Continues where another process ended, or has stopped to hand over. The kernel has the device. */
export async function takeOverDevice(
  options: AttachOptions,
  folder: StateFolder,
  device: KeptDevice,
  from?: { predecessor: Predecessor; inheritance: Inheritance },
): Promise<number> {
  const succession = successionOf(options, folder, device)
  // Stopping a process that is to take a device over means ending the device, for which it must be served.
  const signal = from === undefined ? new AbortController().signal : options.signal
  const volume = await succession.takeUp(signal, from !== undefined)
  const link = newLink(volume, device, options, true)
  try {
    if (from === undefined) {
      succession.begin()
      await link.reconnect(signal)
    } else {
      await from.predecessor.taken(options.signal)
      succession.begin()
      await link.adopt(from.inheritance.sockets, options.signal)
      from.predecessor.serving()
    }
    volume.start()
  } catch (failure) {
    // Until the kernel has our sockets another process may still do better.
    link.end()
    await volume.leave()
    throw failure
  }
  return await new AttachedDevice({ volume, device, options, succession, taken: true }, link).hold()
}
