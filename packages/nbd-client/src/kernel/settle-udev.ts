import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const SETTLE_S = 5

/**
 * Waits until udev has processed the change, a few seconds at most. udev reads a device whenever a writer
 * closes it, as swapoff does, and reads while the device goes would be I/O errors in the kernel's log.
 * Without udev there is nothing to wait for.
 */
export async function settleUdev(): Promise<void> {
  try {
    await promisify(execFile)('udevadm', ['settle', `--timeout=${SETTLE_S}`], { timeout: 2_000 * SETTLE_S })
  } catch {
    // Nothing depends on it.
  }
}
