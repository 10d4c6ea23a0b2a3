import { existsSync } from 'node:fs'
import { EXIT, ExitError } from '@rdmakit/swap-server'
import { attachedFile, type DeviceName, devicePath, parseDevice } from './device-name.js'
import { disconnect } from './disconnect.js'
import { ownStateOf } from './own-state.js'
import { runningClients } from './runtime.js'
import { say } from './session-log.js'
import { settleUdev } from './settle-udev.js'
import { isSwap, swapInUse, swapOff } from './swap.js'
import { ublkDevice } from './ublk-device.js'

const POLL_MS = 50

/** Detaches a device: its process ends in good order; a device without a process is ended here. */
export async function detach(device: string, timeoutSeconds: number): Promise<void> {
  const name = parseDevice(device)
  const path = devicePath(name)
  if (process.geteuid?.() !== 0) throw new ExitError('detach must be run as root', EXIT.forbidden)
  const attached = attachedFile(name)
  const owner = (await runningClients()).find(({ status }) => status.target === path)
  if (owner === undefined && name.front === 'ublk' && ublkDevice.isLeftOver(name.index)) {
    say(`${path} has no disk any more; removing what is left of it`)
    await (await disconnect(name))()
    return
  }
  if (owner === undefined && !existsSync(attached))
    throw new Error(`${path} is not attached; "nbd-client status" lists what is`)
  if (owner === undefined) {
    say(`no running nbd-client holds ${path}; ending the device itself`)
    if (waits(name) && (swapInUse(path) ?? 0) > 0)
      throw new ExitError(
        `${path} has pages that only the next nbd-client of it can bring back; run the command again that attached it, and detach it then`,
        EXIT.taken,
      )
    if (isSwap(path)) await swapOff(path)
    await settleUdev()
    await (await disconnect(name))()
    return
  }
  await owner.stop()
  // The program of a process that has ended is gone, also while nobody has waited for it.
  const running = `/proc/${owner.status.pid}/exe`
  const deadline = Date.now() + timeoutSeconds * 1000
  // The kernel has no event for "the device is gone" that a script could await: its sysfs file is it. After it the
  // process gives the memory back.
  while (existsSync(attached) || existsSync(running)) {
    if (Date.now() > deadline)
      throw new Error(
        `${path} is still ${existsSync(attached) ? 'attached' : 'given back'} after ${timeoutSeconds} s; process ${owner.status.pid} is ending it, see its messages`,
      )
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
  }
}

/** Nobody serves it, and its requests wait. Those of nbd fail when they have waited for long, those of ublk never do. */
function waits(name: DeviceName): boolean {
  const { front, index } = name
  // The kernel does not tell of nbd; what --state keeps elsewhere nobody finds from here.
  if (front === 'nbd') return ownStateOf(name) !== undefined
  const status = ublkDevice.status(index)
  // What a process was is gone with it; its number is not before somebody has waited for it.
  return status?.kept === true && (status.state === 'quiesced' || !existsSync(`/proc/${status.server}/exe`))
}
