import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { findDevice, isOurMake, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { kernelDevice } from '../kernel/kernel.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { say } from '../report/log.js'
import type { KeptVolume } from '../upgrade/volume-json.js'

/** Ends a device that was never announced: its process failed, or died, before it was on record. */
export async function endUnannounced(identifier: string): Promise<void> {
  const never = (path: string) => say(`${path} was created and never served: ending it`)
  if (identifier.startsWith('rdmakit-ublk-')) {
    const ublk = ublkDevice.find(identifier)
    if (ublk === undefined) return
    never(devicePath({ front: 'ublk', index: ublk.index }))
    await ublkDevice.end(ublk.index)
    return
  }
  const index = findDevice(identifier)
  if (index === undefined) return
  never(devicePath({ front: 'nbd', index }))
  kernelDevice.disconnect(index)
}

/**
 * Ends a device that the kernel does not know by its identifier: it would be taken for another program's, and its volume
 * be freed under its swap.
 * @throws ExitError: the kernel is too old
 */
export function checkIdentifier(index: number, identifier: string): void {
  const device = { front: 'nbd', index, identifier } as const
  let known = false
  try {
    known = presenceOf(device) === 'there'
  } finally {
    if (!known) kernelDevice.disconnect(index)
  }
  if (known) return
  throw new ExitError(
    `the kernel keeps no identifier of ${devicePath(device)}: it is too old for nbd, which needs Linux 5.14; --front ublk needs Linux 6.1`,
    EXIT.system,
  )
}

/** Ends what the kernel still has of a folder's device, whose disk is gone, or that never had one. */
export async function endLeftOvers({ connecting, device }: KeptVolume): Promise<void> {
  if (connecting !== undefined) await endUnannounced(connecting)
  // Its disk is gone, but of ublk something may be left.
  const left = device?.front === 'ublk' ? ublkDevice.find(device.identifier) : undefined
  if (left !== undefined) await ublkDevice.end(left.index)
}

/** @throws ExitError: another program has left it */
export async function endLeftOver(index: number): Promise<void> {
  const identifier = ublkDevice.identifierOf(index)
  const path = devicePath({ front: 'ublk', index })
  if (identifier !== undefined && !isOurMake(identifier))
    throw new ExitError(
      `${path} is busy: another program has left it without a disk; choose another --device, or "nbd-client detach --force ${path}"`,
      EXIT.taken,
    )
  await ublkDevice.end(index)
}
