import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { say } from '../report/log.js'
import type { DetachPlan } from './detach-plan.js'
import { disconnect, endUnused, pull } from './disconnect.js'
import { FORCED_MS, isSoonGone, sayWhoHasIt, until } from './gone.js'

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
  await endServer(device)
  await pull(device)
  if (!(await isSoonGone(device))) sayWhoHasIt(device)
}

/** The driver of ublk would wait for its answers. */
async function endServer(device: DeviceIdentity): Promise<void> {
  if (device.front !== 'ublk' || presenceOf(device) !== 'there') return
  const server = ublkDevice.serverOf(device.index)
  if (server === undefined) return
  say(`ending process ${server}, which serves it`)
  process.kill(server, 'SIGKILL')
  await until(() => ublkDevice.serverOf(device.index) === undefined, FORCED_MS)
}
