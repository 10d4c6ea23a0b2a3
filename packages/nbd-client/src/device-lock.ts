import { existsSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { closeDescriptor, lockFile } from './kernel.js'

const RETRY_MS = 50

/**
 * Keeps udev from reading a device that is about to go: what it reads just then would be I/O errors in the kernel's log.
 * It looks at a device whenever somebody who could write closes it, as swapoff does, shares a lock on it meanwhile, and
 * lets a device be that somebody else has locked (systemd.io/BLOCK_DEVICE_LOCKING).
 * @param patience ms; who has the lock for longer, or has locked the device for good, keeps it
 * @returns ends it
 */
export async function lockDevice(device: string, patience = 2_000): Promise<() => void> {
  if (!existsSync(device)) return () => {} // The lock would make it.
  for (const deadline = Date.now() + patience; ; await setTimeout(RETRY_MS)) {
    try {
      const lock = lockFile(device)
      return () => closeDescriptor(lock)
    } catch (failure) {
      // Nothing depends on it.
      if ((failure as NodeJS.ErrnoException).code !== 'EBUSY' || Date.now() > deadline) return () => {}
    }
  }
}
