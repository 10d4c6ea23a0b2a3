import { prepareVolume } from '../device/prepare-volume.js'
import { Volume } from '../engine/block-volume.js'
import { volumeOptions } from '../engine/volume-settings.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { KeptDevice } from '../upgrade/volume-json.js'
import { VolumeKeeper } from '../upgrade/volume-keeper.js'
import { type AttachOptions, swapSettings } from './attach-options.js'
import { type Succession, successionOf } from './succession.js'

/** The volume of a device that is being made. */
export interface NewVolume {
  readonly volume: Volume
  /** The kernel is about to be asked for a device of this name. */
  connecting(identifier: string): void
  /** The kernel has the device. @returns what lets it outlive this process, with a folder */
  made(device: Omit<KeptDevice, 'connections'>): Succession | undefined
}

/** @param folder keeps the volume for the next process; undefined: it ends with this one */
export async function openNewVolume(
  options: AttachOptions,
  folder: StateFolder | undefined,
): Promise<NewVolume> {
  const keeper = folder && new VolumeKeeper(folder, options)
  const linger = (options.linger ?? 0) * 1000
  const { engine, ...keeping } = keeper?.options(linger, options.backup, options.compress) ?? {
    engine: undefined,
  }
  let volume: Volume | undefined
  try {
    volume = await Volume.open({ ...volumeOptions(options, swapSettings(options), engine), ...keeping })
    prepareVolume(volume, options)
  } catch (failure) {
    await volume?.close()
    folder?.abandon()
    throw failure
  }
  return {
    volume,
    connecting: (identifier) => keeper?.connecting(identifier),
    made(device) {
      if (folder === undefined || keeper === undefined) return undefined
      const kept = { ...device, connections: options.connections }
      keeper.device(kept)
      return successionOf(options, folder, kept)
    },
  }
}
