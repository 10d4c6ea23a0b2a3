import type { DeviceName } from './device-name.js'
import { kernelDevice } from './kernel.js'
import { restoreRequests } from './largest-request.js'
import { ublkDevice } from './ublk-device.js'

/**
 * Takes a device away from the kernel, and what was changed about it back.
 * @param identifier of one of ublk: another of the same number is left alone
 * @returns what is left to do when nobody of this process serves it any more
 */
export async function disconnect(
  { front, index }: DeviceName,
  identifier?: string,
): Promise<() => Promise<void>> {
  if (front === 'nbd') {
    kernelDevice.disconnect(index)
    restoreRequests(index)
    return async () => {}
  }
  if (identifier !== undefined && !ublkDevice.is(index, identifier)) return async () => {}
  await ublkDevice.stop(index)
  return async () => await ublkDevice.remove(index)
}
