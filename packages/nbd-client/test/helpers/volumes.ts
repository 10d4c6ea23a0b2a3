import { Volume, type VolumeOptions } from '../../src/engine/block-volume.js'

/** A volume on these servers; the test closes it. */
export function openVolume(
  uris: readonly string[],
  options: Partial<VolumeOptions> & Pick<VolumeOptions, 'size'>,
): Promise<Volume> {
  return Volume.open({ servers: uris.map((uri) => [uri]), lanes: 1, ...options })
}
