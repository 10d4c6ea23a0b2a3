import type { AttachOptions } from '../attach/attach-options.js'
import type { Volume } from '../engine/block-volume.js'
import { protectProcess } from '../kernel/kernel.js'
import { shortReserve } from '../kernel/socket-reserve.js'
import { ControlGroup } from '../kernel/swap-free-group.js'
import { say } from '../report/log.js'
import { reportFailures, reportWrongPages } from '../report/volume-messages.js'

/** Reports on the volume, and locks memory: only when the lanes exist, because only existing memory is locked. */
export function prepareVolume(volume: Volume, options: AttachOptions): void {
  reportFailures(volume)
  reportWrongPages(volume)
  if (options.swap) {
    for (const { name, granted, reason } of [
      ...protectProcess(),
      options.swapFree ?? new ControlGroup().swapFree(),
    ])
      if (!granted) say(`warning: swap safety: ${name} was not granted: ${reason}`)
    const short = shortReserve(options.servers)
    if (short !== undefined) say(`warning: swap safety: ${short}`)
  }
  for (const warning of new Set(volume.lanes.flatMap(({ warnings }) => warnings))) say(`warning: ${warning}`)
}

/** The queues of a ublk device are made after the process's memory was locked, and are part of the page path. */
export function lockQueues({ swap }: Pick<AttachOptions, 'swap'>): void {
  // Missing permissions were reported then.
  if (swap) protectProcess()
}
