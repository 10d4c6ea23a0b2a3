import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { devicePath, type Front } from './device-name.js'
import type { Parting } from './hand-over.js'
import type { KeptDevice } from './kept-volume.js'
import { closeDescriptor, kernelDevice } from './kernel.js'
import type { NativeUblkDevice } from './native.js'
import { say } from './session-log.js'
import { ublkDevice } from './ublk-device.js'
import type { Volume } from './volume.js'

/** From one attempt to give the kernel a socket to the next. */
const RETRY_MS = 500
/** So long the kernel keeps the requests of a device that has no process. */
const DEAD_CONNECTION_SECONDS = 3600

/** A name that only this device's processes know, and that says whose device it is. */
export function drawIdentifier(front: Front = 'nbd'): string {
  return `rdmakit-${front === 'ublk' ? 'ublk-' : ''}${randomBytes(8).toString('hex')}`
}

/** Where the kernel lists its block devices. */
export const BLOCK_DEVICES = '/sys/block'

/** True when the kernel has the device and it is this one, not another of the same number. */
export function deviceExists(
  { front, index, identifier }: Omit<KeptDevice, 'connections'>,
  devices = BLOCK_DEVICES,
): boolean {
  if (front === 'ublk') {
    const there = ublkDevice.find(identifier)
    return there?.index === index && there.state !== 'dead'
  }
  const folder = join(devices, `nbd${index}`)
  if (!existsSync(join(folder, 'pid'))) return false
  try {
    return readFileSync(join(folder, 'backend'), 'utf8').trim() === identifier
  } catch {
    return false
  }
}

/** @returns the index of the nbd device that the kernel has by this name, if it has one */
export function findDevice(identifier: string, devices = BLOCK_DEVICES): number | undefined {
  return readdirSync(devices)
    .flatMap((name) => /^nbd(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
    .find((index) => deviceExists({ front: 'nbd', index, identifier }, devices))
}

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
export function requestTimeout(operationTimeout: number): number {
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
}

/** The queues of a ublk device. */
export class UblkLink implements DeviceLink {
  readonly #volume: Volume
  readonly #device: Omit<KeptDevice, 'connections'>
  readonly #ready: () => void
  readonly #forget: () => void
  #failure: Error | undefined
  #failed: (failure: Error) => void = () => {}

  /** @param ready called when everything is made that serves a device, before it has a request */
  constructor(volume: Volume, device: Omit<KeptDevice, 'connections'>, ready: () => void) {
    this.#volume = volume
    this.#device = device
    this.#ready = ready
    this.#forget = volume.engine.on('connectionClosed', ({ reason }) => {
      this.end()
      // A queue is its thread's for as long as that lives.
      if (deviceExists(device)) {
        this.#failure = new Error(`a queue has ended: ${reason}`)
        this.#failed(this.#failure)
      } else say(`${devicePath(device)} was detached by somebody else: ${reason}`)
    })
  }

  set failed(listener: (failure: Error) => void) {
    this.#failed = listener
    if (this.#failure !== undefined) listener(this.#failure)
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

/** The sockets between the kernel's device (nbd.ko) and the lanes, replaced when they are dead. */
export class KernelLink implements DeviceLink {
  readonly #volume: Volume
  readonly #device: KeptDevice
  readonly #timeout: number
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #forget: () => void
  #ended = false

  /** @param timeout see {@link requestTimeout} */
  constructor(volume: Volume, device: KeptDevice, timeout: number) {
    this.#volume = volume
    this.#device = device
    this.#timeout = timeout
    // The kernel has given the lane's socket up, for an answer came too late: it gets another one.
    this.#forget = volume.engine.on('laneIdle', ({ lane }) => this.#retry(lane))
  }

  /** Never: a socket that fails is replaced. */
  set failed(_: (failure: Error) => void) {}

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
        timeout: this.#timeout,
        deadConnectionTimeout: DEAD_CONNECTION_SECONDS,
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
      if (!deviceExists(this.#device)) {
        this.end()
        say(`/dev/nbd${this.#device.index} was detached by somebody else`)
        return
      }
      try {
        this.#replace(lane)
      } catch (failure) {
        // It has one again.
        if ((failure as NodeJS.ErrnoException).code === 'EBUSY') return
        say(`/dev/nbd${this.#device.index}: lane ${lane} has no socket: ${(failure as Error).message}`)
      }
    }, RETRY_MS)
    this.#timers.add(timer)
  }
}

/** How a device is made that a successor may take over. */
export function keptDeviceOptions(operationTimeout: number) {
  return {
    timeout: requestTimeout(operationTimeout),
    deadConnectionTimeout: DEAD_CONNECTION_SECONDS,
  }
}
