import type { DeviceIdentity, Presence } from '../kernel/device-identity.js'
import { devicePath } from '../kernel/device-name.js'
import type { Parting } from '../upgrade/hand-over.js'

/** Connects the kernel's device with the lanes. */
export interface DeviceLink {
  /** Gives the device of a process that is gone its lanes. @throws EINVAL: it is not this device */
  reconnect(signal: AbortSignal): Promise<void>
  /**
   * Continues with the sockets that another process of the device hands over, by lane; they are closed. None
   * for ublk.
   * @throws as {@link reconnect}
   */
  adopt(sockets: ReadonlyMap<number, number>, signal: AbortSignal): Promise<void>
  /** A hand-over begins. */
  part(): Promise<Parting>
  /**
   * Continues after a failed hand-over. `lost`: lanes whose sockets are lost; `anew`: with new lanes, which
   * have only the sockets that are not lost. @throws as {@link reconnect}
   */
  retake(lost: readonly number[], anew: boolean, signal: AbortSignal): Promise<void>
  /** The device is about to go: it is left alone. */
  end(): void
  /** Called when the device exists, but this process cannot serve it any more. Set by the owner, which then ends. */
  set failed(listener: (failure: Error) => void)
  /**
   * Called when the device no longer exists, because another process has ended it. Set by the owner, which then ends.
   */
  set gone(listener: (what: string) => void)
}

/** For people. */
export function describeGone(device: DeviceIdentity, presence: Exclude<Presence, 'there'>): string {
  return `${devicePath(device)} was detached by another program${presence === 'another' ? ', and is another device now' : ''}`
}
