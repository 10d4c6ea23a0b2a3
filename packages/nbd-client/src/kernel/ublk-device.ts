import { constants, existsSync, readdirSync, readlinkSync } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { setTimeout } from 'node:timers/promises'
import type { Volume } from '../engine/block-volume.js'
import { type NativeUblkDevice, type NativeUblkStatus, native } from '../engine/native.js'
import { say } from '../report/log.js'
import { devicePath } from './device-name.js'
import { closeDescriptor } from './kernel.js'

const PAGE = 4096
/** Where the driver's character devices are, ublkcN: one for each of its devices. */
const DEVICES = '/dev'
/** Where the kernel lists them. */
const CLASS = '/sys/class/ublk-char'
/** How long a process such as udev may use a disk that goes; and the interval between two checks of that. */
const LET_GO_MS = 5_000
const LET_GO_LOOK_MS = 100
/**
 * The interval between two checks of whether the kernel has noticed the end of a process: it notifies no process of
 * that.
 */
const RECOVER_RETRY_MS = 20
/** The kernel checks when the next request comes, or every 5 s; then it releases the process's open files. */
const RECOVER_MS = 30_000
/** Then a process has died that had just begun to recover the device. */
const HALF_RECOVERED_MS = 10_000

/** See {@link ublkDevice.openNudge}. */
interface Nudge {
  give(): void
  close(): Promise<void>
}

/** The driver's form of {@link drawIdentifier}'s name: its 8 bytes. */
function numberOf(identifier: string): bigint {
  const hex = /([0-9a-f]{16})$/.exec(identifier)?.[1]
  if (hex === undefined) throw new Error(`${identifier} is not the name of a ublk device`)
  return BigInt(`0x${hex}`)
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
    index?: number | undefined
    size: number
    queues: number
    identifier: string
    kept: boolean
  }): NativeUblkDevice {
    return native.ublkAdd({
      index: options.index ?? -1,
      size: BigInt(options.size),
      queues: options.queues,
      identifier: numberOf(options.identifier),
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

  /**
   * Continues with a device whose process is gone, as soon as the kernel has noticed that. `ready` as of {@link
   * start}
   */
  async recover(volume: Volume, index: number, ready: () => void, signal: AbortSignal): Promise<void> {
    const { queues } = native.ublkStatus(index)
    await beginRecovery(index, signal)
    serve(volume, index, queues)
    ready()
    await native.ublkResume(index)
  },

  /**
   * Makes the kernel notice that the device's threads are gone: it checks at the next request, else every 5
   * s. Open it while they exist: opening may need them.
   * @param size of the disk
   * @returns undefined: the disk cannot be opened
   */
  async openNudge(index: number, size: number): Promise<Nudge | undefined> {
    let disk: FileHandle
    try {
      disk = await open(devicePath({ front: 'ublk', index }), constants.O_RDONLY | constants.O_DIRECT)
    } catch {
      return undefined
    }
    return {
      give() {
        try {
          native.ublkNudge(disk.fd, BigInt(size - PAGE))
        } catch {
          // Then the kernel looks when it looks.
        }
      },
      close: () => disk.close(),
    }
  },

  /** Takes the disk away, once its requests are answered; its lanes become idle. Then {@link remove}. */
  async stop(index: number): Promise<void> {
    if (!isGone(index)) await native.ublkStop(index).catch(unlessGone)
  },

  /**
   * Removes what {@link stop} has left, unless the disk is still in use, with errors: the kernel would wait
   * for the user, and all others that make and remove devices would wait too.
   */
  async remove(index: number): Promise<void> {
    const deadline = performance.now() + LET_GO_MS
    try {
      while (!isGone(index) && native.ublkUse(index)) {
        if (performance.now() > deadline) {
          const path = devicePath({ front: 'ublk', index })
          say(`${path} is in use: when it no longer is, "nbd-client detach ${path}" removes the rest of it`)
          return
        }
        await setTimeout(LET_GO_LOOK_MS)
      }
      if (!isGone(index)) await native.ublkDelete(index)
    } catch (failure) {
      unlessGone(failure)
    }
  },

  /** {@link stop} and {@link remove} of a device that no lane of this process serves. */
  async end(index: number): Promise<void> {
    await ublkDevice.stop(index)
    await ublkDevice.remove(index)
  },

  status(index: number): NativeUblkStatus | undefined {
    return isGone(index) ? undefined : native.ublkStatus(index)
  },

  /**
   * True when there is no disk any more, nor a process that is about to make one: that process died, and the device
   * was never removed.
   */
  isLeftOver(index: number): boolean {
    return ublkDevice.status(index)?.state === 'dead' && !isServed(index)
  },

  /**
   * @returns what the kernel has by this name, if anything
   * @throws Error: it has devices, and cannot be asked which
   */
  find(identifier: string): NativeUblkStatus | undefined {
    for (const name of existsSync(CLASS) ? readdirSync(CLASS) : []) {
      const index = Number(/^ublkc(\d+)$/.exec(name)?.[1])
      try {
        const status = native.ublkStatus(index)
        if (status.identifier === numberOf(identifier)) return status
      } catch (failure) {
        unlessGone(failure)
      }
    }
    return undefined
  },

  /** @returns its name as {@link drawIdentifier} writes it, also of one that was stopped; undefined: there is none */
  identifierOf(index: number): string | undefined {
    const number = ublkDevice.status(index)?.identifier
    return number === undefined ? undefined : `rdmakit-ublk-${number.toString(16).padStart(16, '0')}`
  },

  /** @returns the process that the driver takes for its server; undefined: none that lives */
  serverOf(index: number): number | undefined {
    const server = ublkDevice.status(index)?.server ?? -1
    // Another process may have its number by now, which has not the device.
    return server > 0 && serves(String(server), index) ? server : undefined
  },

  isServedByAnother(index: number): boolean {
    const server = ublkDevice.serverOf(index)
    return server !== undefined && server !== process.pid
  },

  /** The device of that number is the one of this name, not one that was made since. */
  is(index: number, identifier: string): boolean {
    return ublkDevice.status(index)?.identifier === numberOf(identifier)
  },
}

/** Some process has the character device, as far as this one may look. */
function isServed(index: number): boolean {
  return readdirSync('/proc').some((process) => /^\d+$/.test(process) && serves(process, index))
}

/** It has the character device, or this process may not know. */
function serves(process: string, index: number): boolean {
  try {
    const open = readdirSync(`/proc/${process}/fd`)
    return open.some((fd) => readlinkSync(`/proc/${process}/fd/${fd}`) === `${DEVICES}/ublkc${index}`)
  } catch (failure) {
    return codeOf(failure) !== 'ENOENT' && codeOf(failure) !== 'ESRCH'
  }
}

function isGone(index: number): boolean {
  return !existsSync(`${CLASS}/ublkc${index}`)
}

function unlessGone(failure: unknown): void {
  if (codeOf(failure) !== 'ENODEV') throw failure
}

/**
 * Retries until the kernel has noticed that the process is gone: EBUSY. The device stays busy if that process
 * had fetched for a device that it was about to recover, because then the kernel does not check whether it
 * lives: this ends the recovery in its place, and the kernel checks. EINVAL: that process had not fetched.
 */
async function beginRecovery(index: number, signal: AbortSignal): Promise<void> {
  const started = performance.now()
  let ended = false
  for (;;) {
    try {
      await native.ublkRecover(index)
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
    const lanes = volume.lanes.slice(0, queues).map(({ index: lane }) => lane)
    volume.engine.attachDevice(lanes, device)
  } finally {
    closeDescriptor(device)
  }
}
