import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { say } from '../report/log.js'
import { pull } from './disconnect.js'
import { FORCED_MS, sayWhoHasIt, until } from './gone.js'

/** Takes a device from its users, who lose it. */
export async function endUsed(device: DeviceIdentity): Promise<void> {
  await endServer(device)
  await pull(device)
  await sayWhoHasIt(device)
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
