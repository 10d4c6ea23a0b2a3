import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { devicePath } from './device-name.js'
import { closeDescriptor } from './kernel.js'
import { type NativeUblkDevice, type NativeUblkStatus, native } from './native.js'
import { say } from './session-log.js'
import { isSwap } from './swap.js'
import type { Volume } from './volume.js'

/** Where the driver's character devices are, ublkcN: one for each of its devices. */
const DEVICES = '/dev'
/** From one look at whether the kernel has noticed that a process is gone to the next: it tells nobody. */
const RECOVER_RETRY_MS = 50
/** It looks every 5 s, or when the next request comes; and then lets go of what the process had open. */
const RECOVER_MS = 30_000
/** Then a process has died that had just begun to recover the device. */
const HALF_RECOVERED_MS = 10_000

/** What the driver keeps of {@link drawIdentifier}'s name: its 8 bytes. */
function numberOf(identifier: string): bigint | undefined {
  const hex = /([0-9a-f]{16})$/.exec(identifier)?.[1]
  return hex === undefined ? undefined : BigInt(`0x${hex}`)
}

const codeOf = (failure: unknown) => (failure as NodeJS.ErrnoException).code

/** The kernel's user-space block device driver (ublk_drv), over io_uring commands. */
export const ublkDevice = {
  /** False: the kernel has no such driver, or its module is not loaded. */
  isThere(): boolean {
    return existsSync(`${DEVICES}/ublk-control`)
  },

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

  /**
   * Starts the lanes on its queues, one each, and then the disk. The kernel may use it before this resolves.
   * @param ready called when everything is made that serves it, before it has a request
   * @throws ETIMEDOUT: a lane does not fetch
   */
  async start(volume: Volume, { index, queues }: NativeUblkDevice, ready: () => void): Promise<void> {
    serve(volume, index, queues)
    ready()
    await native.ublkStart(index)
  },

  /** Goes on with a device whose process is gone, as soon as the kernel has noticed that. `ready` as of {@link start} */
  async recover(volume: Volume, index: number, ready: () => void, signal: AbortSignal): Promise<void> {
    const { queues } = native.ublkStatus(index)
    await beginRecovery(index, signal)
    serve(volume, index, queues)
    ready()
    await native.ublkResume(index)
  },

  /** Takes the disk away, once its requests are answered; its lanes become idle. Then {@link remove}. */
  async stop(index: number): Promise<void> {
    if (!isGone(index)) await native.ublkStop(index).catch(unlessGone)
  },

  /**
   * Removes what {@link stop} has left, unless somebody uses the disk yet, who has errors of it: the kernel would wait for
   * him, and all others who make and remove devices for the kernel.
   */
  async remove(index: number): Promise<void> {
    if (isGone(index)) return
    const path = devicePath({ front: 'ublk', index })
    const user = userOf(path)
    if (user === undefined) await native.ublkDelete(index).catch(unlessGone)
    else
      say(
        `${path} is in use (${user}): "nbd-client detach ${path}" removes what is left of it when it is not`,
      )
  },

  /** {@link stop} and {@link remove} of a device that no lane of this process serves. */
  async end(index: number): Promise<void> {
    await ublkDevice.stop(index)
    await ublkDevice.remove(index)
  },

  status(index: number): NativeUblkStatus | undefined {
    return isGone(index) ? undefined : native.ublkStatus(index)
  },

  /** True when there is no disk any more, nor a process that is about to make one: that died, and nobody removed it. */
  isLeftOver(index: number): boolean {
    const status = ublkDevice.status(index)
    return status?.state === 'dead' && (status.server <= 0 || !existsSync(`/proc/${status.server}`))
  },

  /** @returns what the kernel has by this name, if anything */
  find(identifier: string): NativeUblkStatus | undefined {
    const wanted = numberOf(identifier)
    if (wanted === undefined || !ublkDevice.isThere()) return undefined
    for (const name of readdirSync(DEVICES)) {
      const index = /^ublkc(\d+)$/.exec(name)?.[1]
      if (index === undefined) continue
      try {
        const status = native.ublkStatus(Number(index))
        if (status.identifier === wanted) return status
      } catch {
        // It went meanwhile, or is of a program that uses the driver in a way that is not ours.
      }
    }
    return undefined
  },
}

function isGone(index: number): boolean {
  return !existsSync(`${DEVICES}/ublkc${index}`)
}

/** Who has a disk that may be gone already, so that the kernel cannot be asked. */
function userOf(path: string): string | undefined {
  if (isSwap(path)) return 'swap'
  if (readFileSync('/proc/self/mountinfo', 'utf8').includes(` ${path} `)) return 'mounted'
  for (const process of readdirSync('/proc')) {
    if (!/^\d+$/.test(process)) continue
    try {
      for (const descriptor of readdirSync(`/proc/${process}/fd`)) {
        const opened = readlinkSync(`/proc/${process}/fd/${descriptor}`)
        if (opened === path || opened === `${path} (deleted)`) return `process ${process}`
      }
    } catch {
      // It has ended.
    }
  }
  return undefined
}

function unlessGone(failure: unknown): void {
  if (codeOf(failure) !== 'ENODEV') throw failure
}

/**
 * Until the kernel has noticed that the process is gone: EBUSY. It goes on being busy when that one had fetched for a
 * device that it was about to recover, for then nobody looks whether it lives: the recovery is ended in its place, and the
 * kernel looks. EINVAL: that one had not fetched.
 */
async function beginRecovery(index: number, signal: AbortSignal): Promise<void> {
  const started = performance.now()
  let ended = false
  for (;;) {
    try {
      native.ublkRecover(index)
      return
    } catch (failure) {
      const elapsed = performance.now() - started
      const quiesced = ublkDevice.status(index)?.state === 'quiesced'
      if (codeOf(failure) === 'EINVAL' && quiesced) return
      if (codeOf(failure) !== 'EBUSY' || elapsed > RECOVER_MS) throw failure
      if (quiesced && !ended && elapsed > HALF_RECOVERED_MS) {
        ended = true
        await native.ublkResume(index)
      }
    }
    await setTimeout(RECOVER_RETRY_MS, undefined, { signal })
  }
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
