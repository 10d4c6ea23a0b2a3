import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { deviceTimeouts } from '../device/device-timeouts.js'
import type { Volume } from '../engine/block-volume.js'
import { closeDescriptor, kernelDevice } from '../kernel/kernel.js'
import type { AttachOptions } from './attach-options.js'

/** @returns the device's index */
export function connectNbd(
  volume: Volume,
  options: AttachOptions,
  index: number | undefined,
  identifier: string,
  kept: boolean,
): number {
  const sockets = volume.lanes.map(({ index }) => volume.engine.attachSocketpair(index))
  try {
    return kernelDevice.connect({
      ...(index === undefined ? {} : { index }),
      size: options.size,
      serverFlags: volume.engine.exportFlags,
      sockets,
      identifier,
      ...deviceTimeouts(options, kept),
    })
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    if (code === 'EBUSY')
      throw new ExitError(
        `${options.device ?? 'the device'} is busy: it is attached already; choose another --device`,
        EXIT.taken,
      )
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
