import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { KeptDevice } from './kept-volume.js'
import { closeDescriptor, kernelDevice } from './kernel.js'
import { say } from './session-log.js'
import type { Volume } from './volume.js'

/** From one attempt to give the kernel a socket to the next. */
const RETRY_MS = 500
/** So long the kernel keeps the requests of a device that has no process. */
const DEAD_CONNECTION_SECONDS = 3600

/** A name that only this device's processes know. */
export function drawIdentifier(): string {
  return `rdmakit-${randomBytes(8).toString('hex')}`
}

/** Where the kernel lists its block devices. */
export const BLOCK_DEVICES = '/sys/block'

/** True when the kernel has the device and it is this one, not another of the same number. */
export function deviceExists(
  { index, identifier }: Pick<KeptDevice, 'index' | 'identifier'>,
  devices = BLOCK_DEVICES,
): boolean {
  const folder = join(devices, `nbd${index}`)
  if (!existsSync(join(folder, 'pid'))) return false
  try {
    return readFileSync(join(folder, 'backend'), 'utf8').trim() === identifier
  } catch {
    return false
  }
}

/** @returns the index of the device that the kernel has by this name, if it has one */
export function findDevice(identifier: string, devices = BLOCK_DEVICES): number | undefined {
  return readdirSync(devices)
    .flatMap((name) => /^nbd(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
    .find((index) => deviceExists({ index, identifier }, devices))
}

/** Ends a device that nobody was told of: its process failed, or died, before it was on record. */
export function endUnannounced(identifier: string): void {
  const index = findDevice(identifier)
  if (index === undefined) return
  say(`/dev/nbd${index} was made and never served: ending it`)
  kernelDevice.disconnect(index)
}

/**
 * The kernel's seconds for one request. Short, for after a crash it repeats what was in flight only then; above
 * the engine's own deadline, or it would give up the sockets of a process that is about to answer.
 */
export function requestTimeout(operationTimeout: number): number {
  return operationTimeout + 2
}

/** The sockets between the kernel's device and the lanes, replaced when they are dead. */
export class KernelLink {
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

  /** Gives the device of a process that is gone a socket of each lane. @throws EINVAL: it is not this device */
  reconfigure(): void {
    this.replace(this.#volume.lanes.map(({ index }) => index))
  }

  /** Gives it sockets of these lanes in place of those that are gone. @throws as {@link reconfigure} */
  replace(lanes: readonly number[]): void {
    for (const lane of lanes) this.#replace(lane)
  }

  /** Goes on with what another process of the device had, by lane. The descriptors are closed. */
  adopt(sockets: ReadonlyMap<number, number>): void {
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

  /** The device is about to go: its sockets are left alone. */
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
