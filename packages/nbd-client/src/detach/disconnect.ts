import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { blockName } from '../kernel/device-name.js'
import { swapsOn } from '../kernel/device-uses.js'
import { kernelDevice } from '../kernel/kernel.js'
import { restoreRequests } from '../kernel/largest-request.js'
import { settleUdev } from '../kernel/settle-udev.js'
import { beginSwapOff, swapOff } from '../kernel/swap.js'
import { ublkDevice } from '../kernel/ublk-device.js'

/** The time limit for swapoff of a device whose requests fail. */
const PULL_MS = 60_000

/**
 * Disconnects a device from the kernel, and reverts the changes to its settings. Does nothing if the device
 * is gone or another has its number now.
 * @returns the rest of the work, to be done once this process no longer serves it
 */
export async function disconnect(device: DeviceIdentity): Promise<() => Promise<void>> {
  const { front, index, identifier } = device
  if (front === 'nbd') {
    const presence = presenceOf(device)
    if (presence === 'there') kernelDevice.disconnect(index)
    if (presence !== 'another') restoreRequests(index)
    return async () => {}
  }
  if (!ublkDevice.is(index, identifier)) return async () => {}
  await ublkDevice.stop(index)
  return async () => {
    if (ublkDevice.is(index, identifier)) await ublkDevice.remove(index)
  }
}

/** Ends a device that is unused, and that no process serves. @param timeout milliseconds for each swapoff */
export async function endUnused(device: DeviceIdentity, timeout: number): Promise<void> {
  for (const { name } of swapsOn(blockName(device))) {
    if (presenceOf(device) === 'there') await swapOff(`/dev/${name}`, timeout)
  }
  await settleUdev()
  await (await disconnect(device))()
}

/**
 * Takes a device away even if it is in use: the users' requests fail. If it is swap, the pages that are not
 * back in memory are lost, and programs that touch them are killed. A ublk device must not be served by any
 * process any more.
 * @throws Error: it is still swap, and why
 */
export async function pull(device: DeviceIdentity): Promise<void> {
  if (presenceOf(device) !== 'there') return void (await (await disconnect(device))())
  const swaps = swapsOn(blockName(device)).map(({ name }) => `/dev/${name}`)
  if (device.front === 'nbd') {
    await disconnect(device)
    for (const swap of swaps) await swapOff(swap, PULL_MS)
    return
  }
  // Without its disk the swap cannot be found any more, so swapoff comes first. It ends when the requests end.
  const begun = await Promise.all(swaps.map((swap) => beginSwapOff(swap, PULL_MS)))
  const removeRest = await disconnect(device)
  try {
    await Promise.all(begun.map(({ over }) => over))
  } finally {
    await removeRest()
  }
}
