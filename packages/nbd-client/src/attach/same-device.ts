import { UsageError } from '@rdmakit/verbs'
import { devicePath } from '../kernel/device-name.js'
import type { KeptDevice, KeptVolume } from '../upgrade/volume-json.js'
import { type AttachOptions, chosenDevice } from './attach-options.js'

/** @returns the device's path @throws UsageError: the folder's device is another one than `options` say */
export function checkSame(
  options: AttachOptions,
  folder: string,
  kept: KeptVolume,
  device: KeptDevice,
): string {
  const path = devicePath(device)
  const differs = (what: string, there: unknown) =>
    new UsageError(
      `${folder} is of ${path}, which is attached, with ${what} ${there}; restore the old value, or detach ${path} and attach it again with the new one`,
    )
  if (kept.size !== options.size) throw differs('--size', kept.size)
  if (kept.replicas !== options.replicas) throw differs('--replicas', kept.replicas)
  if ((kept.thin ?? false) !== options.thin)
    throw differs('memory', kept.thin ? 'allocated when written (--thin)' : 'allocated at the start')
  if (kept.compressed === true && !options.checksums)
    throw new UsageError(
      `${folder} has compressed pages, which need their checksums: leave out --no-checksum`,
    )
  if ((options.front ?? 'nbd') !== device.front) throw differs('--front', device.front)
  const chosen = chosenDevice(options)
  if (chosen !== undefined && chosen.index !== device.index) throw differs('--device', path)
  return path
}
