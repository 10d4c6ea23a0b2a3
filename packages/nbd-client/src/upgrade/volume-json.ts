import { integerOf } from '@rdmakit/operator-kit'
import type { KeptVolume as RemoteKeptVolume } from '@rdmakit/remote-volume'
import { flag, formatKept, KEPT_FIELDS, only, parseKept, record, word } from '@rdmakit/remote-volume/internal'
import type { DeviceName } from '../kernel/device-name.js'
import { BOOT_ID } from './boot.js'

/**
 * The format version that is written. A reader that knows only the first one would take compressed pages for wrong
 * ones.
 */
const VERSION = 1
const COMPRESSED_VERSION = 2

export interface KeptDevice extends DeviceName {
  /** of the backend: what the kernel must hear again */
  readonly identifier: string
  /** sockets that the kernel has, or queues */
  readonly connections: number
}

/** What volume.json holds. */
export interface KeptVolume extends RemoteKeptVolume {
  /** of attach: identifier of the device that the kernel is being asked for; not announced yet */
  readonly connecting?: string
  /** of attach; undefined until the kernel has the device */
  readonly device?: KeptDevice
  /** of serve: clients may have written to it */
  readonly served?: boolean
  /** of serve: the boot in which that was (boot.ts); older versions kept none */
  readonly boot?: string
}

/** The text of volume.json. */
export function formatVolume(volume: KeptVolume): string {
  const version = volume.compressed === true ? COMPRESSED_VERSION : VERSION
  // Older versions know nothing else, and not the word.
  const device = volume.device?.front === 'nbd' ? { ...volume.device, front: undefined } : volume.device
  return `${JSON.stringify({ version, ...formatKept(volume), device }, null, 2)}\n`
}

/** @throws Error that says what is wrong */
export function parseVolume(text: string): KeptVolume {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error('it is truncated or not JSON')
  }
  const from = record(value, 'it')
  if (from.version !== VERSION && from.version !== COMPRESSED_VERSION)
    throw new Error(
      `it has version ${JSON.stringify(from.version)?.slice(0, 64)}, this nbd-client reads versions ${VERSION} and ${COMPRESSED_VERSION}`,
    )
  only(from, 'it', ['version', ...KEPT_FIELDS, 'connecting', 'device', 'served', 'boot'])
  const volume = parseKept(from)
  const served = flag(from.served, 'served')
  const uses = [served, from.device !== undefined, from.connecting !== undefined]
  if (uses.filter(Boolean).length > 1)
    throw new Error('it belongs to more than one of an export, a device and a device being created')
  if (!served && from.boot !== undefined) throw new Error('it has the boot ID of an export, but no export')
  if (served) return { ...volume, served, ...(from.boot === undefined ? {} : { boot: boot(from.boot) }) }
  if (from.connecting !== undefined) return { ...volume, connecting: word(from.connecting, 'connecting') }
  if (from.device === undefined) return volume
  const device = record(from.device, 'device')
  only(device, 'device', ['front', 'index', 'identifier', 'connections'])
  if (device.front !== undefined && device.front !== 'ublk') throw new Error('device.front is unknown')
  return {
    ...volume,
    device: {
      front: device.front ?? 'nbd',
      index: integerOf(device.index, 'device.index', 0, 9999),
      identifier: word(device.identifier, 'device.identifier'),
      connections: integerOf(device.connections, 'device.connections', 1, 64),
    },
  }
}

function boot(value: unknown): string {
  const id = word(value, 'boot')
  if (!BOOT_ID.test(id)) throw new Error('boot is not a boot ID')
  return id
}
