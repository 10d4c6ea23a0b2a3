import { prepareVolume } from '../device/prepare-volume.js'
import { Volume } from '../engine/block-volume.js'
import { volumeOptions } from '../engine/volume-settings.js'
import { sayAdopted } from '../report/volume-messages.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { KeptDevice } from '../upgrade/volume-json.js'
import { VolumeKeeper } from '../upgrade/volume-keeper.js'
import { type AttachOptions, swapSettings } from './attach-options.js'

/** Lets a device outlive its process. */
export interface Succession {
  readonly folder: StateFolder
  readonly device: KeptDevice
  /** the volume that the folder keeps; {@link Volume.start} is the caller's */
  takeUp(signal?: AbortSignal, handedOver?: boolean): Promise<Volume>
  /** The volume is about to be written to. */
  begin(): void
}

export function successionOf(options: AttachOptions, folder: StateFolder, device: KeptDevice): Succession {
  return {
    folder,
    device,
    async takeUp(signal = new AbortController().signal, handedOver = false): Promise<Volume> {
      const kept = folder.read()
      if (kept === undefined) throw new Error(`${folder.path} no longer holds a volume`)
      const keeper = new VolumeKeeper(folder, kept, kept)
      const linger = (options.linger ?? 0) * 1000
      const { engine, ...keeping } = keeper.options(linger, options.backup, options.compress)
      const { volume, adopted } = await Volume.takeOver(
        {
          ...volumeOptions(
            { ...options, connections: device.connections, signal },
            swapSettings(options),
            engine,
          ),
          ...keeping,
          raise: () => keeper.raise(handedOver),
        },
        kept,
      )
      if (options.compress !== 'none') await keepCompression(keeper, volume)
      sayAdopted(adopted, kept.slabSize)
      volume.expectRequests()
      prepareVolume(volume, options)
      return volume
    },
    begin: () => folder.forgetUnused(options),
  }
}

async function keepCompression(keeper: VolumeKeeper, volume: Volume): Promise<void> {
  try {
    keeper.compresses()
  } catch (failure) {
    await volume.leave()
    throw failure
  }
}
