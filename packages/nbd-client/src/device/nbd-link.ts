import type { Volume } from '../engine/block-volume.js'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { closeDescriptor, kernelDevice } from '../kernel/kernel.js'
import { say } from '../report/log.js'
import type { Parting } from '../upgrade/hand-over.js'
import { type DeviceLink, describeGone } from './device-link.js'
import type { DeviceTimeouts } from './device-timeouts.js'

/** From one attempt to give the kernel a socket to the next. */
const RETRY_MS = 500

/** The sockets between the kernel's device (nbd.ko) and the lanes, replaced when they are dead. */
export class NbdLink implements DeviceLink {
  readonly #volume: Volume
  readonly #device: DeviceIdentity
  readonly #timeouts: DeviceTimeouts
  /** by lane */
  readonly #timers = new Map<number, NodeJS.Timeout>()
  readonly #forget: () => void
  #gone: (what: string) => void = () => {}
  #ended = false

  /** @param timeouts see {@link deviceTimeouts} */
  constructor(volume: Volume, device: DeviceIdentity, timeouts: DeviceTimeouts) {
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
    // One whose socket died while nothing was heard of that, as during a hand-over, is not idle once more.
    for (const { index } of this.#volume.lanes) this.#retry(index)
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
    for (const timer of this.#timers.values()) clearTimeout(timer)
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
    if (this.#ended || this.#timers.has(lane)) return
    const timer = setTimeout(() => {
      this.#timers.delete(lane)
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
        // When none could be made, the lane sees no end of one, and is not idle once more.
        this.#retry(lane)
      }
    }, RETRY_MS)
    this.#timers.set(lane, timer)
  }
}
