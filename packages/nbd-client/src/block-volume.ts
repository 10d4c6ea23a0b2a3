import { EXIT, ExitError, nameOption } from '@rdmakit/operator-kit'
import type { Adopted } from './adopt-slabs.js'
import { BlockEngine } from './block-engine.js'
import type { BlockEngineOptions, FrontOptions } from './front-options.js'
import type { KeptVolume } from './kept-volume.js'
import { openVolume } from './open-volume.js'
import { takeOverVolume } from './take-over-volume.js'
import { Volume as RemoteVolume } from './volume.js'
import type { VolumeOptions as RemoteVolumeOptions } from './volume-options.js'

export type VolumeOptions = RemoteVolumeOptions<BlockEngine, FrontOptions>

/** A volume of `@rdmakit/remote-volume` that NBD clients, or the kernel's devices, use. */
export type Volume = RemoteVolume<BlockEngine>

/** Opens volumes with this package's addon. */
export const Volume = {
  /**
   * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
   * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together;
   *   SwapServerError: a server refused, or ENOSPC: they hold too little
   */
  open(options: VolumeOptions): Promise<Volume> {
    return openVolume(options, makeEngine)
  },

  /**
   * Goes on with the volume of a process that has ended, or left it: its page map and slab map are in `options.engine`, its
   * servers in `kept`. Servers that do not give their session back have failed. Repair waits for {@link Volume.start}.
   * @throws FencedError: another process has the volume; Error when no server gives its session back and there is no
   *   backup; EBUSY: another process has the maps; ConfigurationError: they are not there, of another volume, or damaged
   */
  takeOver(options: VolumeOptions, kept: KeptVolume): Promise<{ volume: Volume; adopted: Adopted }> {
    return takeOverVolume(options, kept, makeEngine)
  },

  [Symbol.hasInstance](value: unknown): value is Volume {
    return value instanceof RemoteVolume
  },
}

/** @throws Error that names the option whose file it cannot use */
function makeEngine(settings: BlockEngineOptions): BlockEngine {
  try {
    return new BlockEngine(settings)
  } catch (failure) {
    // What the engine names: a file, or a library that it needs.
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
      // Of its folder that was looked at before: this is a place where nothing can be made.
      if (code === 'ENOENT') throw new ExitError(`${option}: ${message}`, EXIT.usage)
      throw nameOption(option, failure)
    }
    throw failure
  }
}
