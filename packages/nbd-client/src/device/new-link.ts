import type { AttachOptions } from '../attach/attach-options.js'
import type { Volume } from '../engine/block-volume.js'
import type { DeviceIdentity } from '../kernel/device-identity.js'
import type { DeviceLink } from './device-link.js'
import { deviceTimeouts } from './device-timeouts.js'
import { NbdLink } from './nbd-link.js'
import { lockQueues } from './prepare-volume.js'
import { UblkLink } from './ublk-link.js'

/** @param kept whether another process may take the device over */
export function newLink(
  volume: Volume,
  device: DeviceIdentity,
  options: AttachOptions,
  kept: boolean,
): DeviceLink {
  if (device.front === 'ublk') return new UblkLink(volume, device, () => lockQueues(options))
  return new NbdLink(volume, device, deviceTimeouts(options, kept))
}
