import type { DeviceLink } from '../device/device-link.js'
import type { Volume } from '../engine/block-volume.js'
import type { AttachOptions } from './attach-options.js'
import { connectNbd } from './connect-nbd.js'
import { startUblk } from './start-ublk.js'

/**
 * Has the kernel make the device.
 * @param wanted its index; undefined: the first that is free @param kept whether another process may take it over
 * @returns `link`: of ublk, because it reports a failing queue from the first request on
 */
export async function makeDevice(
  volume: Volume,
  options: AttachOptions,
  wanted: number | undefined,
  identifier: string,
  kept: boolean,
): Promise<{ index: number; link: DeviceLink | undefined }> {
  if (options.front === 'ublk') return await startUblk(volume, options, wanted, identifier, kept)
  return { index: connectNbd(volume, options, wanted, identifier, kept), link: undefined }
}
