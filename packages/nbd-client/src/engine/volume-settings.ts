import type { BackupOptions, Compress } from '@rdmakit/remote-volume'
import { say } from '../report/log.js'
import type { VolumeOptions } from './block-volume.js'

/** What serve and attach are told of their volume, from the command line to {@link VolumeOptions}. */
export interface VolumeSettings {
  readonly servers: readonly (readonly string[])[]
  readonly size: number
  readonly connections: number
  /** seconds */
  readonly operationTimeout: number
  readonly replicas: number
  /** take memory of the servers as it is written, see VolumeOptions.thin */
  readonly thin: boolean
  readonly acknowledge: 'all' | 'one' | 'backup'
  /** undefined: none */
  readonly backup: BackupOptions | undefined
  /** bytes; 0: none */
  readonly readAhead: number
  /** bytes per second; 0: no limit */
  readonly refillRate: number
  /** keep and check a checksum of each page */
  readonly checksums: boolean
  readonly compress: Compress
  readonly access: NonNullable<VolumeOptions['access']>
  /** seconds that the servers keep the slabs without a process; with `state` only */
  readonly linger?: number | undefined
  /** seconds that requests wait for a server that alone has their pages, see VolumeOptions.reconnect; default 0 */
  readonly reconnect?: number | undefined
  readonly signal: AbortSignal
}

/** @param own what only serve, or attach, tells the engine @param files what the engine keeps in a state folder */
export function volumeOptions(
  settings: VolumeSettings,
  own: NonNullable<VolumeOptions['engine']>,
  files?: VolumeOptions['engine'],
): VolumeOptions {
  const { servers, size, connections, replicas, thin, access, backup, signal } = settings
  const { operationTimeout, acknowledge, readAhead, refillRate, checksums, compress } = settings
  return {
    servers,
    size,
    lanes: connections,
    replicas,
    thin,
    access,
    reconnect: (settings.reconnect ?? 0) * 1000,
    ...(backup === undefined ? {} : { backup }),
    signal,
    progress: say,
    engine: {
      operationTimeout: operationTimeout * 1000,
      acknowledge,
      readAhead,
      refillRate,
      checksums,
      compress,
      ...own,
      ...files,
    },
  }
}
