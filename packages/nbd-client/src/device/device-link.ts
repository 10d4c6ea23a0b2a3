import type { DeviceIdentity, Presence } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import type { Parting } from '../upgrade/hand-over.js'

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
export function describeGone(device: DeviceIdentity, presence: Exclude<Presence, 'there'>): string {
  return `${devicePath(device)} was detached by another program${presence === 'another' ? ', and is another device now' : ''}`
}
