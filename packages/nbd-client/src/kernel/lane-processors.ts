import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Volume } from '../engine/block-volume.js'
import { say } from '../report/log.js'
import { BLOCK_DEVICES } from './device-identity.js'

/**
 * The processors whose requests the kernel sends through a device's connection, by their numbers
 * (`/sys/block/DEVICE/mq/M/cpu_list`); empty: there are none, for it has more connections than processors.
 */
export function processorsOf(device: string, connection: number, devices = BLOCK_DEVICES): number[] {
  try {
    const list = readFileSync(join(devices, device, 'mq', String(connection), 'cpu_list'), 'utf8')
    return [...list.matchAll(/\d+/g)].map(([number]) => Number(number))
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw failure
  }
}

/** Those that run now, by their numbers. The kernel lists those that a machine may get, too, and nothing comes from them. */
export function runningProcessors(
  list = readFileSync('/sys/devices/system/cpu/online', 'utf8'),
): Set<number> {
  const ranges = [...list.matchAll(/(\d+)(?:-(\d+))?/g)].map(([, first, last = first]) => [
    Number(first),
    Number(last),
  ])
  return new Set(
    ranges.flatMap(([first = 0, last = 0]) => Array.from({ length: last - first + 1 }, (_, i) => first + i)),
  )
}

/**
 * Keeps each lane on the processors whose requests it serves, as the kernel keeps its own workers of the device
 * (kblockd, interrupts of an NVMe drive): who waits for a page has left his processor to the lane, and neither wakes
 * another one. A lane that cannot be kept there runs anywhere.
 */
export function keepLanesNear(
  volume: Volume,
  device: string,
  devices = BLOCK_DEVICES,
  running = runningProcessors(),
): void {
  for (const { index: lane } of volume.lanes) {
    try {
      const processors = processorsOf(device, lane, devices).filter((processor) => running.has(processor))
      if (processors.length > 0) volume.engine.pinLane(lane, processors)
    } catch (failure) {
      say(`lane ${lane} of /dev/${device} runs on any processor: ${(failure as Error).message}`)
    }
  }
}
