import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { blockName } from '../kernel/device-name.js'
import { swapsOn } from '../kernel/device-uses.js'
import { settleUdev } from '../kernel/settle-udev.js'
import { swapOff } from '../kernel/swap.js'
import { disconnect } from './disconnect.js'

/** Ends a device that is unused, and that no process serves. @param timeout milliseconds for each swapoff */
export async function endUnused(device: DeviceIdentity, timeout: number): Promise<void> {
  for (const { name } of swapsOn(blockName(device))) {
    if (presenceOf(device) === 'there') await swapOff(`/dev/${name}`, timeout)
  }
  await settleUdev()
  return await (await disconnect(device))()
}
