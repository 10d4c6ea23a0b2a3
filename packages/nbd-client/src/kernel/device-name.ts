import { UsageError } from '@rdmakit/verbs'

/** The kernel's driver that requests come from: nbd.ko, or ublk_drv. */
export type Front = 'nbd' | 'ublk'

export interface DeviceName {
  readonly front: Front
  readonly index: number
}

/** As in /sys/block. */
export function blockName({ front, index }: DeviceName): string {
  return front === 'nbd' ? `nbd${index}` : `ublkb${index}`
}

/** A file that exists while the device is attached: the nbd driver's devices themselves always exist. */
export function attachedFile(device: DeviceName): string {
  return `/sys/block/${blockName(device)}${device.front === 'nbd' ? '/pid' : ''}`
}

export function devicePath(device: DeviceName): string {
  return `/dev/${blockName(device)}`
}

/** `/dev/nbdN` or `/dev/ublkbN`, also without `/dev/`. @throws UsageError */
export function parseDevice(device: string): DeviceName {
  const [, name, index] = /^(?:\/dev\/)?(nbd|ublkb)(\d{1,4})$/.exec(device) ?? []
  if (index === undefined)
    throw new UsageError(`"${device}" is not a device name; write /dev/nbd0, or /dev/ublkb0`)
  return { front: name === 'nbd' ? 'nbd' : 'ublk', index: Number(index) }
}
