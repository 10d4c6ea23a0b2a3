import { AttachedDevice } from '../device/attached-device.js'
import { drawIdentifier } from '../kernel/device-identity.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { AttachOptions } from './attach-options.js'
import { checkStart } from './check-start.js'
import { endUnannounced } from './left-over.js'
import { makeDevice } from './make-device.js'
import { openNewVolume } from './new-volume.js'

/** Makes a device, with an empty volume. @param folder keeps it for the next process; undefined: it ends with this one */
export async function attachNew(options: AttachOptions, folder: StateFolder | undefined): Promise<number> {
  const { front = 'nbd' } = options
  const chosen = await checkStart(options).catch((failure: unknown) => {
    folder?.abandon()
    throw failure
  })
  const { volume, connecting, made } = await openNewVolume(options, folder)
  const identifier = drawIdentifier(front)
  let attached: AttachedDevice
  try {
    connecting(identifier)
    const wanted = { index: chosen?.index, identifier, kept: folder !== undefined }
    const { index, link } = await makeDevice(volume, options, wanted)
    const device = { front, index, identifier }
    const succession = made(device)
    attached = new AttachedDevice({ volume, device, options, succession, taken: false }, link)
  } catch (failure) {
    await volume.close()
    // Before the folder forgets its name.
    await endUnannounced(identifier)
    folder?.abandon()
    throw failure
  }
  return await attached.hold()
}
