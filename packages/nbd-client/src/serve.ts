import { type ControlSocket, type MetricsEndpoint, notifyReady } from '@rdmakit/swap-server'
import type { BackupOptions } from './backup.js'
import type { ExportOptions, TlsOptions } from './engine-options.js'
import { serveMetrics } from './metrics.js'
import { openControlSocket } from './runtime.js'
import { reportFailures, reportWrongPages, say, statusOf } from './session-log.js'
import { Volume } from './volume.js'
import type { VolumeOptions } from './volume-options.js'

export interface ServeOptions {
  readonly servers: readonly (readonly string[])[]
  readonly size: number
  readonly address: { readonly unix: string } | { readonly host: string; readonly port: number }
  readonly connections: number
  /** the first one is the default */
  readonly exports: readonly ExportOptions[]
  /** bytes */
  readonly minimumBlockSize: number
  /** undefined: no TLS */
  readonly tls: TlsOptions | undefined
  /** seconds */
  readonly operationTimeout: number
  readonly replicas: number
  /** take memory of the servers as it is written, see VolumeOptions.thin */
  readonly thin: boolean
  readonly acknowledge: 'all' | 'one' | 'backup'
  /** undefined: none */
  readonly backup: BackupOptions | undefined
  /** bytes per second; 0: no limit */
  readonly refillRate: number
  /** keep and check a checksum of each page */
  readonly checksums: boolean
  readonly access: NonNullable<VolumeOptions['access']>
  /** where to serve metrics */
  readonly metrics: string | undefined
  readonly signal: AbortSignal
}

/**
 * Serves remote memory as an NBD export until `signal` aborts or the last server is lost.
 * @returns the process's exit status
 */
export async function serve(options: ServeOptions): Promise<number> {
  const volume = await Volume.open({
    servers: options.servers,
    size: options.size,
    lanes: options.connections,
    replicas: options.replicas,
    thin: options.thin,
    access: options.access,
    ...(options.backup === undefined ? {} : { backup: options.backup }),
    signal: options.signal,
    progress: say,
    engine: {
      exports: options.exports,
      minimumBlockSize: options.minimumBlockSize,
      ...(options.tls === undefined ? {} : { tls: options.tls }),
      operationTimeout: options.operationTimeout * 1000,
      acknowledge: options.acknowledge,
      refillRate: options.refillRate,
      checksums: options.checksums,
    },
  })
  let control: ControlSocket | undefined
  let metrics: MetricsEndpoint | undefined
  try {
    reportFailures(volume)
    reportWrongPages(volume)
    const { address } = options
    const name = encodeURIComponent(options.exports[0]?.name ?? '')
    const scheme = options.tls?.mode === 'required' ? 'nbds' : 'nbd'
    let uri: string
    if ('unix' in address) {
      volume.engine.listenUnix(address.unix)
      uri = `${scheme}+unix:///${name}?socket=${encodeURI(address.unix)}`
    } else {
      const bound = volume.engine.listenTcp(address.host, address.port)
      uri = `${scheme}://${bound.host.includes(':') ? `[${bound.host}]` : bound.host}:${bound.port}/${name}`
    }
    const stopped = new Promise<number>((resolve) => {
      if (options.signal.aborted) resolve(0)
      options.signal.addEventListener('abort', () => resolve(0), { once: true })
      // With its last server the volume has lost its data: in-flight requests get EIO, and a new start
      // makes a new volume.
      const check = () => {
        if (volume.lost) resolve(1)
      }
      volume.onServerFailure(check)
      volume.onBackupFailure(check)
      if (volume.lost) resolve(1)
    })
    control = await openControlSocket(
      () => statusOf(volume, { mode: 'serve', target: uri, swap: false }),
      () => process.kill(process.pid, 'SIGTERM'),
    )
    volume.engine.on('listenerFailed', ({ address: where, reason }) =>
      say(`listener ${where} failed: ${reason}`),
    )
    metrics = await serveMetrics(volume, options.metrics)
    process.stdout.write(`ready ${uri}\n`)
    await notifyReady(`serves ${uri}`, say)
    return await stopped
  } finally {
    control?.close()
    metrics?.close()
    await volume.close()
  }
}
