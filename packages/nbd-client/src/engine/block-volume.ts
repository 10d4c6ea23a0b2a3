import { EXIT, ExitError, nameOption } from '@rdmakit/operator-kit'
import {
  type Adopted,
  type KeptVolume,
  openVolume,
  Volume as RemoteVolume,
  type VolumeOptions as RemoteVolumeOptions,
  takeOverVolume,
} from '@rdmakit/remote-volume'
import { BlockEngine } from './block-engine.js'
import type { BlockEngineOptions, FrontOptions } from './front-options.js'

export type VolumeOptions = RemoteVolumeOptions<BlockEngine, FrontOptions>

/** A volume of remote memory that NBD clients, or the kernel's devices, use. */
export class Volume extends RemoteVolume<BlockEngine> {
  /** {@link openVolume} of remote-volume. @throws what that throws */
  static open(options: VolumeOptions): Promise<Volume> {
    return openVolume(options, makeEngine, Volume)
  }

  /** {@link takeOverVolume} of remote-volume. Repair waits for {@link Volume.start}. @throws what that throws */
  static takeOver(options: VolumeOptions, kept: KeptVolume): Promise<{ volume: Volume; adopted: Adopted }> {
    return takeOverVolume(options, kept, makeEngine, Volume)
  }
}

/** @throws Error that names the option whose file it cannot use */
function makeEngine(settings: BlockEngineOptions): BlockEngine {
  try {
    return new BlockEngine(settings)
  } catch (failure) {
    // The file or library that the engine's error names.
    const named = {
      '--backup': settings.backup?.file,
      '--tls-certificates': settings.tls?.certificates,
      '--tls-psk': settings.tls?.sharedKeys,
      '--tls': 'libgnutls',
      '--compress': 'liblz4',
    }
    const { code, message } = failure as NodeJS.ErrnoException
    for (const [option, name] of Object.entries(named)) {
      if (name === undefined || !message.includes(name)) continue
      // The folder was checked before, so nothing can be created at this path.
      if (code === 'ENOENT') throw new ExitError(`${option}: ${message}`, EXIT.usage)
      throw nameOption(option, failure)
    }
    throw failure
  }
}
