import { disconnect, pull } from '../detach/disconnect.js'
import { settleUdev } from '../kernel/settle-udev.js'
import type { Attachment } from './attachment.js'

/** Waits until no process examines a device that has just lost its swap. */
export const settleDevice = settleUdev

/**
 * The volume gives its memory back, even if the end of the device fails. @param pulled the device is in use, and its
 * users lose it
 */
export async function endDevice({ device, volume, succession }: Attachment, pulled: boolean): Promise<void> {
  let removeRest = async (): Promise<void> => {}
  try {
    // The driver of ublk waits for answers, which may not come: not of a queue that has no thread any more.
    if (pulled && device.front === 'ublk') await volume.close()
    if (pulled) await pull(device)
    else removeRest = await disconnect(device)
  } finally {
    await volume.close()
    succession?.folder.forget()
  }
  await removeRest()
}
