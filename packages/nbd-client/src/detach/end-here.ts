import type { DeviceIdentity } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { say } from '../report/log.js'
import type { DetachPlan } from './detach-plan.js'
import { disconnect } from './disconnect.js'
import { endUnused } from './end-unused.js'
import { endUsed } from './end-used.js'

/** Ends a device without its process. @param timeout milliseconds for each swapoff */
export async function endHere(plan: DetachPlan, device: DeviceIdentity, timeout: number): Promise<void> {
  const path = devicePath(device)
  if (plan === 'remove') {
    say(`${path} has no disk any more; removing the rest of it`)
    return await (await disconnect(device))()
  }
  if (plan === 'end') {
    say(`no running nbd-client holds ${path}; ending the device itself`)
    return await endUnused(device, timeout)
  }
  say(`ending ${path} even if it is in use`)
  await endUsed(device)
}
