import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { say } from '../report/log.js'
import { BLOCK_DEVICES } from './device-identity.js'

/** KiB; what the nbd driver sets when it makes its devices (256 sectors, drivers/block/nbd.c) */
const DRIVERS = 128
/** KiB; beyond this nothing is gained */
const OURS = 512

/**
 * Lets the kernel merge its requests to the device up to 512 KiB (queue/max_sectors_kb, sysfs-block(5)): swap
 * evicts adjacent pages, and a request costs as much as several pages. A size that another program has chosen
 * stays. Call it only while no request is outstanding: newer kernels wait for the device's requests here.
 */
export function allowLargeRequests(index: number, devices = BLOCK_DEVICES): void {
  try {
    change(index, DRIVERS, OURS, devices)
  } catch (failure) {
    say(`/dev/nbd${index} keeps requests of ${DRIVERS} KiB: ${(failure as Error).message}`)
  }
}

/** Restores the driver's setting for the next user of the device. Only when it is disconnected, see above. */
export function restoreRequests(index: number, devices = BLOCK_DEVICES): void {
  try {
    change(index, OURS, DRIVERS, devices)
  } catch {
    // It was never changed, or is gone.
  }
}

function change(index: number, from: number, to: number, devices: string): void {
  const file = join(devices, `nbd${index}`, 'queue', 'max_sectors_kb')
  if (Number(readFileSync(file, 'utf8')) === from) writeFileSync(file, String(to))
}
