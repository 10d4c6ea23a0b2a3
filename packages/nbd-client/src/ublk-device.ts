import { readdirSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { closeDescriptor } from './kernel.js'
import { type NativeUblkDevice, type NativeUblkStatus, native } from './native.js'
import type { Volume } from './volume.js'

/** The kernel's character devices of the driver, one for each of its devices. */
const DEVICES = '/dev'
/** From one look at whether the kernel has noticed that a process is gone to the next: it tells nobody. */
const RECOVER_RETRY_MS = 50
/** It looks every 5 s, or when the next request comes. */
const RECOVER_MS = 30_000

/** What the driver keeps of {@link drawIdentifier}'s name: its 8 bytes. */
function numberOf(identifier: string): bigint | undefined {
  const hex = /([0-9a-f]{16})$/.exec(identifier)?.[1]
  return hex === undefined ? undefined : BigInt(`0x${hex}`)
}

/** The kernel's user-space block device driver (ublk_drv), over io_uring commands. */
export const ublkDevice = {
  /**
   * Makes the device, without a disk yet.
   * @param index default the first free one
   * @param kept its requests wait for a successor when its process dies, else they fail
   * @returns its index, and its queues, of which there are at most as many as processors
   * @throws ENOENT: no ublk_drv; EPERM: not root; EEXIST: the index is in use
   */
  add(options: {
    index?: number
    size: number
    queues: number
    identifier: string
    kept: boolean
  }): NativeUblkDevice {
    return native.ublkAdd({
      index: options.index ?? -1,
      size: BigInt(options.size),
      queues: options.queues,
      identifier: numberOf(options.identifier) ?? 0n,
      kept: options.kept,
    })
  },

  /** Starts the lanes on its queues, one each, and then the disk. The kernel may use it before this resolves. */
  async start(volume: Volume, { index, queues }: NativeUblkDevice): Promise<void> {
    serve(volume, index, queues)
    await native.ublkStart(index)
  },

  /** Goes on with a device whose process is gone, as soon as the kernel has noticed that. */
  async recover(volume: Volume, index: number, signal: AbortSignal): Promise<void> {
    const deadline = performance.now() + RECOVER_MS
    for (;;) {
      try {
        native.ublkRecover(index)
        break
      } catch (failure) {
        if ((failure as NodeJS.ErrnoException).code !== 'EBUSY' || performance.now() > deadline) throw failure
      }
      await setTimeout(RECOVER_RETRY_MS, undefined, { signal })
    }
    serve(volume, index, native.ublkStatus(index).queues)
    await native.ublkResume(index)
  },

  /** Takes the disk away, once its requests are answered, and then the device. Its lanes become idle. */
  async remove(index: number): Promise<void> {
    await native.ublkStop(index)
    await native.ublkDelete(index)
  },

  /** @returns what the kernel has by this name, if anything */
  find(identifier: string): NativeUblkStatus | undefined {
    const wanted = numberOf(identifier)
    if (wanted === undefined) return undefined
    for (const name of readdirSync(DEVICES)) {
      const index = /^ublkc(\d+)$/.exec(name)?.[1]
      if (index === undefined) continue
      try {
        const status = native.ublkStatus(Number(index))
        if (status.identifier === wanted) return status
      } catch (failure) {
        // It went meanwhile.
        if ((failure as NodeJS.ErrnoException).code !== 'ENODEV') throw failure
      }
    }
    return undefined
  },
}

function serve(volume: Volume, index: number, queues: number): void {
  const device = native.ublkOpen(index)
  try {
    for (const [queue, { index: lane }] of volume.lanes.slice(0, queues).entries())
      volume.engine.attachDevice(lane, device, queue)
  } finally {
    closeDescriptor(device)
  }
}
