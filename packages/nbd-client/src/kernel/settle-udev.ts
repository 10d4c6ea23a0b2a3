import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const SETTLE_S = 5

/**
 * Waits until udev has looked at what has changed, a few seconds at most. It reads a device whenever somebody who could
 * write closes it, as swapoff does, and what it reads while the device goes would be I/O errors in the kernel's log.
 * Where there is no udev, nobody does that.
 */
export async function settleUdev(): Promise<void> {
  try {
    await promisify(execFile)('udevadm', ['settle', `--timeout=${SETTLE_S}`], { timeout: 2_000 * SETTLE_S })
  } catch {
    // Nothing depends on it.
  }
}
