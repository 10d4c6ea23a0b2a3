import type { VolumeOptions } from '../engine/block-volume.js'
import { volumeOptions as optionsOf, type VolumeSettings } from '../engine/volume-settings.js'
import type { ExportPlace, ExportPlaceOptions } from './export-place.js'

/** The options of serve. */
export interface ServeOptions extends ExportPlaceOptions, VolumeSettings {
  /** bytes */
  readonly minimumBlockSize: number
  /** folder that lets the next process serve the same volume; default none */
  readonly state?: string | undefined
}

/** With where it is served. */
export interface Serving extends ServeOptions {
  readonly place: ExportPlace
}

/** @param files what the engine keeps in a state folder */
export function volumeOptions(options: Serving, files?: VolumeOptions['engine']): VolumeOptions {
  const { exports, minimumBlockSize, tls, place } = options
  const front = { exports, minimumBlockSize, ...(tls === undefined ? {} : { tls }) }
  // Unlike the kernel's, most connections are never made, or do little at a time.
  return { ...optionsOf(options, front, files), populated: false, prepare: (engine) => place.bind(engine) }
}
