import type { Volume } from '../engine/block-volume.js'
import type { NativeUblkDevice } from '../engine/native.js'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import type { Parting } from '../upgrade/hand-over.js'
import { type DeviceLink, describeGone } from './device-link.js'

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
