import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { DeviceIdentity } from '../kernel/device-identity.js'
import { blockName, devicePath } from '../kernel/device-name.js'
import {
  describeUses,
  KERNEL,
  type KernelFolders,
  lastingUses,
  MOMENT_MS,
  swapsOn,
} from '../kernel/device-uses.js'
import { swapOff } from '../kernel/swap.js'
import { say } from '../report/log.js'

/** From one look at who uses a device to the next. */
const LOOK_MS = 2_000
/** From a swapoff that failed to the next one: memory may be free by then. */
const SWAPOFF_AGAIN_MS = 30_000

/** `free`: unused; `gone`: no longer this process's device; `pull`: in use, and its users shall lose it. */
export type Release = 'free' | 'gone' | 'pull'

/** State of the process that has the device. */
export interface Holder {
  /** the kernel has the device, and this process serves it */
  isOurs(): boolean
  /** nothing is kept by staying: no page can be had any more */
  isLost(): boolean
  /** aborts when the device shall end even if it is in use */
  readonly forced: AbortSignal
  /** resolves when something happened that may change what this waits for */
  stirred(): Promise<void>
}

interface Obstacle {
  readonly what: string
  readonly remedy: string
  /** milliseconds until it is looked at again by itself */
  readonly again: number
}

/**
 * Waits until a device may go: turns its swap off, and keeps the device while it is in use or the kernel cannot take
 * the pages back, because they would be lost.
 */
export async function release(
  device: DeviceIdentity,
  holder: Holder,
  folders: KernelFolders = KERNEL,
): Promise<Release> {
  const path = devicePath(device)
  let told: string | undefined
  for (;;) {
    if (holder.forced.aborted) return 'pull'
    const obstacle = await obstacleTo(device, holder, folders, told === undefined).catch(unknown)
    if (obstacle === 'gone') return 'gone'
    if (holder.forced.aborted) return 'pull'
    if (obstacle === undefined) return 'free'
    if (holder.isLost()) {
      say(`${obstacle.what}; the pages on the lost servers are gone`)
      return 'pull'
    }
    if (obstacle.what !== told) say(`${obstacle.what}; ${path} stays attached; ${obstacle.remedy}`)
    told = obstacle.what
    await Promise.race([holder.stirred(), delay(obstacle.again)])
  }
}

/** If the use of a device cannot be examined, it is kept. */
function unknown(failure: Error): Obstacle {
  return { what: failure.message, remedy: 'this is checked again', again: LOOK_MS }
}

async function obstacleTo(
  device: DeviceIdentity,
  holder: Holder,
  folders: KernelFolders,
  first: boolean,
): Promise<Obstacle | 'gone' | undefined> {
  const name = blockName(device)
  for (const { name: part } of swapsOn(name, folders)) {
    if (!holder.isOurs()) return 'gone'
    say(`swapoff /dev/${part}: bringing its pages back`)
    const off = swapOff(`/dev/${part}`, undefined, join(folders.proc, 'swaps'))
    const failure = await failureOf(Promise.race([off, aborted(holder.forced)]))
    if (failure !== undefined)
      return {
        what: failure.message,
        remedy: `free memory: swapoff is tried again in ${SWAPOFF_AGAIN_MS / 1000} s, and at SIGTERM`,
        again: SWAPOFF_AGAIN_MS,
      }
  }
  if (!holder.isOurs()) return 'gone'
  const { uses, unseen } = await lastingUses(name, [process.pid], first ? MOMENT_MS : 0, folders)
  if (uses.length === 0) {
    if (unseen > 0) say(`warning: cannot see what ${unseen} processes have open (CAP_SYS_PTRACE)`)
    return undefined
  }
  return { what: describeUses(uses), remedy: 'it is detached when it is no longer in use', again: LOOK_MS }
}

async function failureOf(work: Promise<void>): Promise<Error | undefined> {
  return await work.then(
    () => undefined,
    (failure: Error) => failure,
  )
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
