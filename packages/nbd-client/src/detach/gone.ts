import { setTimeout as delay } from 'node:timers/promises'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { blockName, devicePath } from '../kernel/device-name.js'
import { describeUses, MOMENT_MS, usesOf } from '../kernel/device-uses.js'
import { say } from '../report/log.js'

const POLL_MS = 50
/** The time for the rest of the work on a device that its users lose. */
export const FORCED_MS = 90_000

/** @returns false: the kernel has the device even after a moment */
export function isSoonGone(device: DeviceIdentity): Promise<boolean> {
  return until(() => presenceOf(device) !== 'there', MOMENT_MS)
}

/** The kernel keeps the number of a device that is still open, though the device does nothing any more. */
export function sayWhoHasIt(device: DeviceIdentity): void {
  const { uses } = usesOf(blockName(device), [process.pid])
  say(`${devicePath(device)} has ended, and is gone when it is no longer in use: ${describeUses(uses)}`)
}

/** The kernel has no event for "the device is gone" that a script could await. @returns false: not in time */
export async function until(over: () => boolean, milliseconds: number): Promise<boolean> {
  const deadline = performance.now() + milliseconds
  while (!over()) {
    if (performance.now() > deadline) return false
    await delay(POLL_MS)
  }
  return true
}
