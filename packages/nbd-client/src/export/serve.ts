import { openRuntimeDirectory } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import { Volume } from '../engine/block-volume.js'
import { StateFolder } from '../upgrade/state-folder.js'
import { ExportPlace } from './export-place.js'
import { serveKept } from './kept-export.js'
import { type ServeOptions, type Serving, volumeOptions } from './serve-options.js'
import { serveVolume } from './serve-volume.js'

/**
 * Serves remote memory as an NBD export until `signal` aborts or the last server is lost. With `state`, the volume
 * stays for a while when this process ends, and the next one with that folder serves it again.
 * @returns the process's exit status
 */
export async function serve(given: ServeOptions): Promise<number> {
  // The control socket is opened when the volume exists, which would be too late for a refusal without a trace.
  openRuntimeDirectory()
  const place = await ExportPlace.open(given)
  try {
    return await serveAt({ ...given, place })
  } finally {
    place.close()
  }
}

async function serveAt(options: Serving): Promise<number> {
  if (options.state === undefined) {
    const volume = await Volume.open(volumeOptions(options))
    try {
      return await serveVolume(volume, options)
    } finally {
      await volume.close()
    }
  }
  if (options.acknowledge === 'one')
    throw new UsageError(
      '--state needs --ack all or --ack backup: with --ack one an answered write may be lost with the process',
    )
  if (options.compress !== 'none')
    throw new UsageError(
      'serve has no --compress with --state: a page that was being written when the process dies could be lost',
    )
  const folder = StateFolder.open(options.state)
  try {
    return await serveKept(options, folder)
  } finally {
    folder.close()
  }
}
