import { blockName } from '../kernel/device-name.js'
import { describeUses, partitionsOf, usesOf } from '../kernel/device-uses.js'
import { keepLanesNear } from '../kernel/lane-processors.js'
import { allowLargeRequests } from '../kernel/largest-request.js'
import { isSwap, swapOn } from '../kernel/swap.js'
import type { Attachment } from './attachment.js'

/** Lets the lanes run where the kernel sends them requests. */
export function placeLanes({ options, volume, device }: Attachment): void {
  if (options.pin) keepLanesNear(volume, blockName(device))
}

/**
 * Call it before the device is used: a device that was taken over keeps its setting, and its requests may be waiting.
 */
export function enlargeRequests({ taken, device }: Attachment): void {
  if (!taken && device.front === 'nbd') allowLargeRequests(device.index)
}

/** Makes it swap, if it is to be that and is not yet. */
export async function makeSwap(attachment: Attachment): Promise<void> {
  const { options, path } = attachment
  if (!options.swap || isSwap(path)) return
  // A device that was taken over is swap already, or may be in use in another way.
  const name = blockName(attachment.device)
  if (attachment.taken) {
    const others = [describeUses(usesOf(name, [process.pid]).uses), ...partitionsOf(name)].filter(Boolean)
    if (others.length > 0) throw new Error(`${path} is not made swap: ${others.join('; ')}`)
  }
  await swapOn(path, options.swapPriority)
}

/** If the device is only open, that may be udev, which examines every new device. */
export function isUsed({ device }: Attachment): boolean {
  return usesOf(blockName(device), [process.pid]).uses.some(({ kind }) => kind !== 'open')
}
