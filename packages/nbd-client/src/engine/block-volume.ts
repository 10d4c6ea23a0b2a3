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
  /**
   * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
   * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together;
   *   SwapServerError: a server refused, or ENOSPC: they hold too little
   */
  static open(options: VolumeOptions): Promise<Volume> {
    return openVolume(options, makeEngine, Volume)
  }

  /**
   * Goes on with the volume of a process that has ended, or left it: its page map and slab map are in `options.engine`, its
   * servers in `kept`. Servers that do not give their session back have failed. Repair waits for {@link Volume.start}.
   * @throws FencedError: another process has the volume; Error when no server gives its session back and there is no
   *   backup; EBUSY: another process has the maps; ConfigurationError: they are not there, of another volume, or damaged
   */
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
