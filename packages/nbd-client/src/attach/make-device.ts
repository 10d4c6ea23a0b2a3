import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { deviceTimeouts } from '../device/device-timeouts.js'
import { lockQueues } from '../device/prepare-volume.js'
import { UblkLink } from '../device/ublk-link.js'
import type { Volume } from '../engine/block-volume.js'
import { closeDescriptor, kernelDevice } from '../kernel/kernel.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import type { AttachOptions } from './attach-options.js'
import { checkIdentifier, endLeftOver } from './left-over.js'

/** The device that the kernel is to make. */
interface Wanted {
  /** undefined: the first that is free */
  readonly index: number | undefined
  readonly identifier: string
  /** another process may take it over */
  readonly kept: boolean
}

/**
 * Has the kernel make the device.
 * @returns its index; of ublk also its link, which reports a failing queue from the first request on
 */
export async function makeDevice(
  volume: Volume,
  options: AttachOptions,
  wanted: Wanted,
): Promise<{ index: number; link?: UblkLink }> {
  if (options.front === 'ublk') return await startUblk(volume, options, wanted)
  const index = connectNbd(volume, options, wanted)
  checkIdentifier(index, wanted.identifier)
  return { index }
}

function connectNbd(volume: Volume, options: AttachOptions, wanted: Wanted): number {
  const sockets = volume.lanes.map(({ index }) => volume.engine.attachSocketpair(index))
  try {
    return kernelDevice.connect({
      index: wanted.index,
      size: options.size,
      serverFlags: volume.engine.exportFlags,
      sockets,
      identifier: wanted.identifier,
      ...deviceTimeouts(options, wanted.kept),
    })
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    if (code === 'EBUSY') throw busy(options.device ?? 'the device')
    if (code === 'ENODEV' || code === 'EINVAL')
      throw new ExitError(
        `the kernel has no ${options.device ?? 'free NBD device'}; load nbd with more devices ("modprobe nbd nbds_max=16")`,
        EXIT.system,
      )
    throw failure
  } finally {
    for (const socket of sockets) closeDescriptor(socket)
  }
}

async function startUblk(
  volume: Volume,
  options: AttachOptions,
  { index: wanted, identifier, kept }: Wanted,
) {
  let link: UblkLink | undefined
  try {
    if (wanted !== undefined && ublkDevice.isLeftOver(wanted)) await endLeftOver(wanted)
    const { size } = options
    const device = ublkDevice.add({ index: wanted, size, queues: volume.lanes.length, identifier, kept })
    const { index } = device
    link = new UblkLink(volume, { front: 'ublk', index, identifier }, () => lockQueues(options))
    await link.start(device)
    return { index, link }
  } catch (failure) {
    link?.end()
    if ((failure as NodeJS.ErrnoException).code === 'EEXIST') throw busy(`${options.device}`)
    throw failure
  }
}

function busy(device: string): ExitError {
  return new ExitError(`${device} is busy: it is attached already; choose another --device`, EXIT.taken)
}
