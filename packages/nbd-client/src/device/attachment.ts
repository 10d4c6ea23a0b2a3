import type { AttachOptions } from '../attach/attach-options.js'
import type { Succession } from '../attach/succession.js'
import type { Volume } from '../engine/block-volume.js'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import type { DeviceLink } from './device-link.js'
import { newLink } from './new-link.js'

export interface AttachmentParts {
  readonly volume: Volume
  readonly device: DeviceIdentity
  readonly options: AttachOptions
  /** undefined: the device ends with this process */
  readonly succession: Succession | undefined
  /** the device is one that another process had */
  readonly taken: boolean
}

/** A device that the kernel has, the volume that serves it here, and what connects the two. */
export class Attachment {
  readonly device: DeviceIdentity
  readonly path: string
  readonly options: AttachOptions
  readonly succession: Succession | undefined
  readonly taken: boolean
  volume: Volume
  link: DeviceLink

  /** @param link default: a new one */
  constructor({ volume, device, options, succession, taken }: AttachmentParts, link?: DeviceLink) {
    this.device = device
    this.path = devicePath(device)
    this.options = options
    this.succession = succession
    this.taken = taken
    this.volume = volume
    this.link = link ?? newLink(volume, device, options, succession !== undefined)
  }

  /** Another link, after a hand-over that failed: to `volume`. */
  relink(volume: Volume): void {
    this.volume = volume
    this.link = newLink(volume, this.device, this.options, true)
  }

  /** Another process may have ended it, and another device have its number since; or another process may serve it. */
  isOurs(): boolean {
    if (presenceOf(this.device) !== 'there') return false
    return this.device.front === 'nbd' || !ublkDevice.isServedByAnother(this.device.index)
  }
}
