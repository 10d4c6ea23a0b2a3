import { createHash } from 'node:crypto'
import { dirname, join } from 'node:path'
import { runtimeDirectory } from '@rdmakit/operator-kit'
import type { VolumeSettings } from '../engine/volume-settings.js'
import { type Front, parseDevice } from '../kernel/device-name.js'

/**
 * The part of a command line that identifies the volume: settings that a later process may not change, and the
 * volume's place.
 */
export type VolumeIdentity = Pick<VolumeSettings, 'servers' | 'size' | 'replicas' | 'thin' | 'access'> & {
  readonly front?: Front | undefined
  readonly device: string | undefined
}

/**
 * The name of the state folder of an attach that was given none, without the number that follows it when the kernel
 * chooses the device. The same command line has the same name, and another tenant, server or size another one.
 */
export function ownStateName(identity: VolumeIdentity): string {
  const { front = 'nbd', device, servers, size, replicas, thin, access } = identity
  if (device !== undefined) {
    const { index } = parseDevice(device)
    return `${front}-${index}`
  }
  const text = JSON.stringify([servers, size, replicas, thin, access.tenant ?? null])
  return `${front}-${createHash('sha256').update(text).digest('hex').slice(0, 16)}`
}

/** The folder of the state folders that no command line named. */
export function ownStateDirectory(): string {
  return join(runtimeDirectory(), 'state')
}

/** It is a folder that no command line named, and is removed with its device. */
export function isOwnState(path: string): boolean {
  return dirname(path) === ownStateDirectory()
}
