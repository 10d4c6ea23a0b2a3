import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { blockName } from '../kernel/device-name.js'
import { swapsOn } from '../kernel/device-uses.js'
import { kernelDevice } from '../kernel/kernel.js'
import { restoreRequests } from '../kernel/largest-request.js'
import { beginSwapOff, swapOff } from '../kernel/swap.js'
import { ublkDevice } from '../kernel/ublk-device.js'

/** So long swapoff may take of a device whose requests fail. */
const PULL_MS = 60_000

/**
 * Takes a device away from the kernel, and what was changed about it back. One that is gone, or another that has its number
 * now, is left alone.
 * @returns what is left to do when nobody of this process serves it any more
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

/**
 * Takes a device from whoever uses it, too: their requests fail. Of swap on it the pages that nobody has brought back are
 * lost, and programs that touch them are killed. Of ublk no process may serve it any more.
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
  // Without its disk nobody finds the swap any more, so swapoff comes first. It ends as the requests do.
  const begun = await Promise.all(swaps.map((swap) => beginSwapOff(swap, PULL_MS)))
  const removeRest = await disconnect(device)
  await Promise.all(begun.map(({ over }) => over))
  await removeRest()
}
