import type { DeviceName } from './device-name.js'
import { kernelDevice } from './kernel.js'
import { restoreRequests } from './largest-request.js'
import { ublkDevice } from './ublk-device.js'

/** Takes a device away from the kernel, and what was changed about it back. */
export async function disconnect({ front, index }: DeviceName): Promise<void> {
  if (front === 'ublk') return await ublkDevice.remove(index)
  kernelDevice.disconnect(index)
  restoreRequests(index)
}
