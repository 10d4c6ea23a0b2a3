import type { Volume } from '../engine/block-volume.js'
import type { NativeUblkDevice } from '../engine/native.js'
import { type DeviceIdentity, findDevice, type Presence, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { closeDescriptor, kernelDevice } from '../kernel/kernel.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { say } from '../report/session-log.js'
import type { Parting } from '../upgrade/hand-over.js'
import type { AttachOptions } from './attach.js'

/** From one attempt to give the kernel a socket to the next. */
const RETRY_MS = 500
/** So long the kernel keeps the requests of a device that has no process. */
const DEAD_CONNECTION_SECONDS = 3600

/** Ends a device that nobody was told of: its process failed, or died, before it was on record. */
export async function endUnannounced(identifier: string): Promise<void> {
  const never = (path: string) => say(`${path} was made and never served: ending it`)
  if (identifier.startsWith('rdmakit-ublk-')) {
    const ublk = ublkDevice.find(identifier)
    if (ublk === undefined) return
    never(devicePath({ front: 'ublk', index: ublk.index }))
    await ublkDevice.end(ublk.index)
    return
  }
  const index = findDevice(identifier)
  if (index === undefined) return
  never(devicePath({ front: 'nbd', index }))
  kernelDevice.disconnect(index)
}

/**
 * The kernel's seconds for one request. Short, for after a crash it repeats what was in flight only then; above
 * the engine's own deadline, or it would give up the sockets of a process that is about to answer.
 */
function requestTimeout(operationTimeout: number): number {
  return operationTimeout + 2
}

/** What the kernel's device and the lanes are connected by. */
export interface DeviceLink {
  /** Gives the device of a process that is gone its lanes. @throws EINVAL: it is not this device */
  reconnect(signal: AbortSignal): Promise<void>
  /**
   * Goes on with what another process of the device hands over: sockets by lane, which are closed; none of ublk.
   * @throws as {@link reconnect}
   */
  adopt(sockets: ReadonlyMap<number, number>, signal: AbortSignal): Promise<void>
  /** A hand-over begins. */
  part(): Promise<Parting>
  /**
   * Goes on after a hand-over that failed. `lost`: lanes whose sockets are; `anew`: with lanes that have nothing yet
   * but sockets that are not lost. @throws as {@link reconnect}
   */
  retake(lost: readonly number[], anew: boolean, signal: AbortSignal): Promise<void>
  /** The device is about to go: it is left alone. */
  end(): void
  /** Called when the device is there, and this process cannot serve it any more. Set by whoever ends then. */
  set failed(listener: (failure: Error) => void)
  /** Called when there is no such device any more: somebody else has ended it. Set by whoever ends then. */
  set gone(listener: (what: string) => void)
}

/** For people. */
function describeGone(device: DeviceIdentity, presence: Exclude<Presence, 'there'>): string {
  return `${devicePath(device)} was detached by somebody else${presence === 'another' ? ', and is another device now' : ''}`
}

/** The queues of a ublk device. */
export class UblkLink implements DeviceLink {
  readonly #volume: Volume
  readonly #device: DeviceIdentity
  readonly #ready: () => void
  readonly #forget: () => void
  #failure: Error | undefined
  #failed: (failure: Error) => void = () => {}
  #what: string | undefined
  #gone: (what: string) => void = () => {}

  /** @param ready called when everything is made that serves a device, before it has a request */
  constructor(volume: Volume, device: DeviceIdentity, ready: () => void) {
    this.#volume = volume
    this.#device = device
    this.#ready = ready
    this.#forget = volume.engine.on('connectionClosed', ({ reason }) => {
      this.end()
      this.#hasEnded(reason)
    })
  }

  /** A queue is its thread's for as long as that lives. */
  #hasEnded(reason: string): void {
    try {
      const presence = presenceOf(this.#device)
      if (presence !== 'there') {
        this.#what = `${describeGone(this.#device, presence)}: ${reason}`
        this.#gone(this.#what)
        return
      }
      this.#failure = new Error(`a queue has ended: ${reason}`)
    } catch (failure) {
      this.#failure = new Error(`a queue has ended: ${reason}; ${(failure as Error).message}`)
    }
    this.#failed(this.#failure)
  }

  set failed(listener: (failure: Error) => void) {
    this.#failed = listener
    if (this.#failure !== undefined) listener(this.#failure)
  }

  set gone(listener: (what: string) => void) {
    this.#gone = listener
    if (this.#what !== undefined) listener(this.#what)
  }

  /** Gives a device that was just made its lanes, and the kernel its disk. */
  async start(made: NativeUblkDevice): Promise<void> {
    await ublkDevice.start(this.#volume, made, this.#ready)
  }

  async reconnect(signal: AbortSignal): Promise<void> {
    try {
      await ublkDevice.recover(this.#volume, this.#device.index, this.#ready, signal)
    } catch (failure) {
      throw new Error(
        `${devicePath(this.#device)} cannot be recovered: ${(failure as Error).message}; its requests wait; start it again`,
      )
    }
  }

  async part(): Promise<Parting> {
    const rested = () => this.end()
    const nudge = await ublkDevice.openNudge(this.#device.index, this.#volume.size)
    return nudge === undefined ? { rested } : { rested, ended: nudge.give, over: nudge.close }
  }

  /** The other process's threads have ended: the kernel takes it for gone. */
  async adopt(_: ReadonlyMap<number, number>, signal: AbortSignal): Promise<void> {
    await this.reconnect(signal)
  }

  async retake(_: readonly number[], anew: boolean, signal: AbortSignal): Promise<void> {
    if (anew) await this.reconnect(signal)
  }

  end(): void {
    this.#forget()
  }
}

/** Seconds, see {@link KernelDeviceOptions}. */
interface Timeouts {
  readonly timeout: number
  readonly deadConnectionTimeout: number
}

/** The sockets between the kernel's device (nbd.ko) and the lanes, replaced when they are dead. */
export class KernelLink implements DeviceLink {
  readonly #volume: Volume
  readonly #device: DeviceIdentity
  readonly #timeouts: Timeouts
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #forget: () => void
  #gone: (what: string) => void = () => {}
  #ended = false

  /** @param timeouts see {@link deviceTimeouts} */
  constructor(volume: Volume, device: DeviceIdentity, timeouts: Timeouts) {
    this.#volume = volume
    this.#device = device
    this.#timeouts = timeouts
    // The kernel has given the lane's socket up, for an answer came too late or the device is gone.
    this.#forget = volume.engine.on('laneIdle', ({ lane }) => this.#retry(lane))
  }

  /** Never: a socket that fails is replaced. */
  set failed(_: (failure: Error) => void) {}

  set gone(listener: (what: string) => void) {
    this.#gone = listener
  }

  async reconnect(): Promise<void> {
    await this.retake(this.#volume.lanes.map(({ index }) => index))
  }

  /** Gives it sockets of these lanes in place of those that are gone. */
  async retake(lost: readonly number[]): Promise<void> {
    for (const lane of lost) this.#replace(lane)
  }

  /** No socket is replaced any more. */
  async part(): Promise<Parting> {
    this.end()
    return {}
  }

  async adopt(sockets: ReadonlyMap<number, number>): Promise<void> {
    try {
      for (const { index } of this.#volume.lanes) {
        const socket = sockets.get(index)
        if (socket === undefined) this.#replace(index)
        else this.#volume.engine.attachSocket(index, socket)
      }
    } finally {
      for (const socket of sockets.values()) closeDescriptor(socket)
    }
  }

  end(): void {
    this.#ended = true
    this.#forget()
    for (const timer of this.#timers) clearTimeout(timer)
  }

  #replace(lane: number): void {
    const socket = this.#volume.engine.attachSocketpair(lane)
    try {
      kernelDevice.reconfigure({
        index: this.#device.index,
        size: this.#volume.size,
        serverFlags: this.#volume.engine.exportFlags,
        sockets: [socket],
        ...this.#timeouts,
        identifier: this.#device.identifier,
      })
    } finally {
      // When the kernel has not taken it, for it holds the old one for alive yet, the lane sees the end of it
      // and is idle again.
      closeDescriptor(socket)
    }
  }

  #retry(lane: number): void {
    if (this.#ended) return
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      if (this.#ended) return
      try {
        const presence = presenceOf(this.#device)
        if (presence !== 'there') {
          this.end()
          this.#gone(describeGone(this.#device, presence))
          return
        }
        this.#replace(lane)
      } catch (failure) {
        // It has one again.
        if ((failure as NodeJS.ErrnoException).code === 'EBUSY') return
        say(`${devicePath(this.#device)}: lane ${lane} has no socket: ${(failure as Error).message}`)
      }
    }, RETRY_MS)
    this.#timers.add(timer)
  }
}

/** seconds that the last call to a server that was waited for may take */
const LAST_CALL_S = 10
/** seconds that the file of a backup may take for one system call (packages/remote-volume/native/backup/backup.h) */
const BACKUP_TIMEOUT_S = 10

/**
 * How long a request may take, and how long one waits for the next process.
 * @param kept whether there may be one
 */
export function deviceTimeouts(
  options: Pick<AttachOptions, 'operationTimeout' | 'replicas' | 'reconnect' | 'backup'>,
  kept: boolean,
): Timeouts {
  if (kept)
    return {
      timeout: requestTimeout(options.operationTimeout),
      deadConnectionTimeout: DEAD_CONNECTION_SECONDS,
    }
  return {
    // Above the engine's own deadlines: the engine says what failed, the kernel only that time is up. A
    // READ may have to try each replica, and then the backup.
    timeout:
      options.operationTimeout * options.replicas +
      6 +
      (options.reconnect ? options.reconnect + LAST_CALL_S : 0) +
      (options.backup === undefined ? 0 : BACKUP_TIMEOUT_S),
    // Nobody takes this device over: what a dead client left in flight fails instead of waiting.
    deadConnectionTimeout: 0,
  }
}
