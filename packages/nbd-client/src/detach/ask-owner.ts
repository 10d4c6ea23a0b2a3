import { existsSync } from 'node:fs'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { describeUses, MOMENT_MS } from '../kernel/device-uses.js'
import type { RunningClient } from '../report/control.js'
import { say } from '../report/log.js'
import { FORCED_MS, isSoonGone, sayWhoHasIt, until } from './gone.js'
import { swappedTo, usesBesidesSwap } from './uses-besides-swap.js'

/** The control socket is closed: the process is about to end, or has ended. */
const CLOSED = ['ENOENT', 'ECONNREFUSED', 'ECONNRESET']

/**
 * Has the process that serves a device end it. `timeout`: seconds
 * @returns false: the process has ended, and may have left the device: unasked, as at another detach, or killed meanwhile
 * @throws Error: it has not, and why
 */
export async function askOwner(
  device: DeviceIdentity,
  owner: RunningClient,
  { timeout, force }: { readonly timeout: number; readonly force: boolean },
): Promise<boolean> {
  const { pid } = owner
  const path = devicePath(device)
  // The exe link of a process that has ended is gone, even before the process is reaped.
  const ended = () => !existsSync(`/proc/${pid}/exe`)
  const deadline = performance.now() + timeout * 1000
  const rest = () => deadline - performance.now()
  try {
    await owner.stop()
  } catch (failure) {
    if (CLOSED.includes((failure as NodeJS.ErrnoException).code ?? '') && (await until(ended, rest())))
      return false
    throw failure
  }
  // Its users are examined once its swap is off, which may take all of the time.
  await until(() => ended() || (force && swappedTo(device) === undefined), rest())
  if (force && !ended() && (await usesBesidesSwap(device, [pid], MOMENT_MS)).length === 0)
    await until(ended, rest())
  if (!ended()) {
    if (!force)
      throw new Error(`${path} is not detached after ${timeout} s: ${await reasonOf(device, owner)}`)
    say(`ending ${path} even if it is in use`)
    await owner.stop(true)
    if (!(await until(ended, FORCED_MS)))
      throw new Error(`${path} has not ended in ${FORCED_MS / 1000} s: ${await reasonOf(device, owner)}`)
  }
  if (await isSoonGone(device)) return true
  // One that has ended is swap no more, and stays only while somebody has it open.
  if (swappedTo(device) !== undefined || (await usesBesidesSwap(device, [])).length === 0) return false
  sayWhoHasIt(device)
  return true
}

/** The reason why a device still exists that should have ended. */
async function reasonOf(device: DeviceIdentity, { pid, answers }: RunningClient): Promise<string> {
  if (presenceOf(device) !== 'there') return `it has ended, and process ${pid} is freeing its memory`
  if (!(await answers())) return `process ${pid} no longer answers`
  const swapped = swappedTo(device)
  if (swapped !== undefined)
    return `${swapped} KiB are still swapped out to it; process ${pid} continues to bring them back, see its messages`
  const uses = await usesBesidesSwap(device, [pid])
  return uses.length > 0
    ? `${describeUses(uses)}; process ${pid} detaches it when it is no longer in use`
    : `process ${pid} is ending it, see its messages`
}
