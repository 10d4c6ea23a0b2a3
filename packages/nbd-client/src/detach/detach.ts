import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { type DeviceIdentity, isOurMake } from '../kernel/device-identity.js'
import { devicePath, parseDevice } from '../kernel/device-name.js'
import { MOMENT_MS } from '../kernel/device-uses.js'
import { askOwner } from './ask-owner.js'
import { type DetachFacts, planDetach } from './detach-plan.js'
import { endHere } from './end-here.js'
import { inKernel, processesOf } from './owner.js'
import { swappedTo, usesBesidesSwap } from './uses-besides-swap.js'

export interface DetachOptions {
  /** seconds in which it ends in good order */
  readonly timeout: number
  /** ends the device whoever uses it, whatever is lost, and whoever made it */
  readonly force: boolean
}

/**
 * Detaches a device: its process ends in good order; a device without a process is ended here.
 * @throws ExitError: it is not, and why: see {@link planDetach}
 */
export async function detach(text: string, options: DetachOptions): Promise<void> {
  const name = parseDevice(text)
  if (process.geteuid?.() !== 0) throw new ExitError('detach must be run as root', EXIT.forbidden)
  const { identifier, left } = inKernel(name)
  // From here on nothing is done to another device that gets the number.
  const device = { ...name, identifier: identifier ?? '' }
  let state: DetachFacts['device'] = identifier === undefined ? 'gone' : left ? 'left' : 'there'
  while (!(await detachAs(state, device, options))) {
    const now = inKernel(name)
    if (now.identifier !== identifier) return
    state = now.left ? 'left' : 'there'
  }
}

/** @returns false: its process has ended meanwhile, and may have left it: look again @throws as {@link detach} */
async function detachAs(
  state: DetachFacts['device'],
  device: DeviceIdentity,
  options: DetachOptions,
): Promise<boolean> {
  const isThere = state === 'there'
  const { owner, hung } = isThere ? await processesOf(device, options) : { owner: undefined, hung: [] }
  if (owner?.elsewhere)
    throw new ExitError(
      `${devicePath(device)} is attached by nbd-client ${owner.pid} of another PID namespace; detach it from there, e.g. in its container`,
      EXIT.unavailable,
    )
  const plan = planDetach({
    path: devicePath(device),
    device: state,
    ours: owner !== undefined || isOurMake(device.identifier),
    owner: owner?.pid,
    silent: hung,
    uses: isThere ? await usesBesidesSwap(device, [...hung, owner?.pid ?? 0], MOMENT_MS) : [],
    swapped: swappedTo(device),
    force: options.force,
  })
  if (plan === 'ask' && owner !== undefined) return await askOwner(device, owner, options)
  await endHere(plan, device, options.timeout * 1000)
  return true
}
