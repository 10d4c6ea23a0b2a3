import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { blockName, type DeviceName, type Front } from './device-name.js'
import { ublkDevice } from './ublk-device.js'

/** A device that the kernel has, or had: its number, and what tells it from others that have the number before or after. */
export interface DeviceIdentity extends DeviceName {
  /** see {@link drawIdentifier} */
  readonly identifier: string
}

/** What has a device's number: that device, none, or another one. */
export type Presence = 'there' | 'gone' | 'another'

/** How the numbers begin that ublk_drv keeps for us, of 8 bytes: other programs have flags there, or 0. */
const UBLK_MARK = '72646d'

/** A name that only this device's processes know, and that says whose device it is. */
export function drawIdentifier(front: Front = 'nbd'): string {
  return front === 'ublk'
    ? `rdmakit-ublk-${UBLK_MARK}${randomBytes(5).toString('hex')}`
    : `rdmakit-${randomBytes(8).toString('hex')}`
}

/** Where the kernel lists its block devices. */
export const BLOCK_DEVICES = '/sys/block'

/**
 * @returns the identifier of the kernel's device with this number, for comparison; '' if its maker gave it
 * none; undefined: no device, or a stopped one of ublk
 * @throws Error: the kernel has it and cannot be asked
 */
export function identifierOf(name: DeviceName, devices = BLOCK_DEVICES): string | undefined {
  if (name.front === 'ublk') {
    if (ublkDevice.status(name.index)?.state === 'dead') return undefined
    return ublkDevice.identifierOf(name.index)
  }
  const folder = join(devices, blockName(name))
  if (statSync(join(folder, 'pid'), { throwIfNoEntry: false }) === undefined) return undefined
  try {
    return readFileSync(join(folder, 'backend'), 'utf8').trim()
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    // Made by ioctl(2), or it just went. Any other failure is no word on whose device it is.
    if (code === 'ENOENT' || code === 'ENODEV') return ''
    throw failure
  }
}

/** Some nbd-client made it, as its identifier says. */
export function isOurMake(identifier: string): boolean {
  return /^rdmakit-[0-9a-f]{16}$/.test(identifier) || identifier.startsWith(`rdmakit-ublk-${UBLK_MARK}`)
}

/** To be asked before each act on a device that another may have the number of. @throws as {@link identifierOf} */
export function presenceOf(device: DeviceIdentity, devices = BLOCK_DEVICES): Presence {
  const identifier = identifierOf(device, devices)
  // Where the kernel's list cannot be seen, as without /sys, nothing is known to be gone.
  if (identifier === undefined) statSync(devices)
  if (identifier === undefined) return 'gone'
  return identifier === device.identifier ? 'there' : 'another'
}

/** @returns the index of the nbd device that the kernel has by this name, if it has one */
export function findDevice(identifier: string, devices = BLOCK_DEVICES): number | undefined {
  return nbdIndices(devices).find(
    (index) => presenceOf({ front: 'nbd', index, identifier }, devices) === 'there',
  )
}

function nbdIndices(devices: string): number[] {
  return readdirSync(devices)
    .flatMap((name) => /^nbd(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
}

/**
 * @returns the process that the kernel names for a device, which may have ended: of ublk the one that serves it, of nbd the one
 * that has made it
 */
export function namedProcess(name: DeviceName, devices = BLOCK_DEVICES): number | undefined {
  if (name.front === 'ublk') return ublkDevice.serverOf(name.index)
  try {
    return Number(readFileSync(join(devices, blockName(name), 'pid'), 'utf8'))
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENODEV') return undefined
    throw failure
  }
}

/** Processes that the kernel names for other devices of nbd. */
export function processesOfOthers(name: DeviceName, devices = BLOCK_DEVICES): Set<number> {
  const others = nbdIndices(devices).filter((index) => name.front !== 'nbd' || index !== name.index)
  return new Set(others.flatMap((index) => namedProcess({ front: 'nbd', index }, devices) ?? []))
}
