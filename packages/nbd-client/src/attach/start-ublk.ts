import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { lockQueues } from '../device/prepare-volume.js'
import { UblkLink } from '../device/ublk-link.js'
import type { Volume } from '../engine/block-volume.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import type { AttachOptions } from './attach-options.js'
import { endLeftOver } from './left-over.js'

/** @returns the device's index; and its link, which reports a failing queue from the first request on */
export async function startUblk(
  volume: Volume,
  options: AttachOptions,
  wanted: number | undefined,
  identifier: string,
  kept: boolean,
): Promise<{ index: number; link: UblkLink }> {
  try {
    if (wanted !== undefined && ublkDevice.isLeftOver(wanted)) await endLeftOver(wanted)
    const device = ublkDevice.add({
      ...(wanted === undefined ? {} : { index: wanted }),
      size: options.size,
      queues: volume.lanes.length,
      identifier,
      kept,
    })
    const { index } = device
    const link = new UblkLink(volume, { front: 'ublk', index, identifier }, () => lockQueues(options))
    try {
      await link.start(device)
    } catch (failure) {
      link.end()
      throw failure
    }
    return { index, link }
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code === 'EEXIST')
      throw new ExitError(
        `${options.device} is busy: it is attached already; choose another --device`,
        EXIT.taken,
      )
    throw failure
  }
}
