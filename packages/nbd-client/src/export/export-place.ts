import { nameOption } from '@rdmakit/operator-kit'
import type { BlockEngine } from '../engine/block-engine.js'
import type { Volume } from '../engine/block-volume.js'
import type { ExportOptions, TlsOptions } from '../engine/export-options.js'
import type { EarlyMetrics } from '../report/metrics.js'

export interface ExportPlaceOptions {
  readonly address: { readonly unix: string } | { readonly host: string; readonly port: number }
  /** the first one is the default */
  readonly exports: readonly ExportOptions[]
  /** undefined: no TLS */
  readonly tls: TlsOptions | undefined
  /** where to serve metrics; undefined: nowhere */
  readonly metrics: string | undefined
}

/** Where an export is served, and its metrics: addresses that are taken before any memory is, or found to be another's. */
export class ExportPlace {
  readonly #options: ExportPlaceOptions
  readonly #metrics: EarlyMetrics | undefined
  #uri = ''

  private constructor(options: ExportPlaceOptions, metrics: EarlyMetrics | undefined) {
    this.#options = options
    this.#metrics = metrics
  }

  /** Takes the address of the metrics. @throws UsageError, EADDRINUSE and others of listen */
  static async open(options: ExportPlaceOptions): Promise<ExportPlace> {
    const { metrics } = options
    if (metrics === undefined) return new ExportPlace(options, undefined)
    // A sixth of what a start would load.
    const { EarlyMetrics } = await import('../report/metrics.js')
    return new ExportPlace(options, await EarlyMetrics.open(metrics))
  }

  /** Takes the address of the export. Clients that connect wait. @throws what {@link BlockEngine.bindUnix} throws */
  bind(engine: BlockEngine): void {
    const { address, exports, tls } = this.#options
    const name = encodeURIComponent(exports[0]?.name ?? '')
    const scheme = tls?.mode === 'required' ? 'nbds' : 'nbd'
    if ('unix' in address) {
      naming('--unix', () => engine.bindUnix(address.unix))
      this.#uri = `${scheme}+unix:///${name}?socket=${encodeURIComponent(address.unix).replaceAll('%2F', '/')}`
    } else {
      const { host, port } = naming('--tcp', () => engine.bindTcp(address.host, address.port))
      this.#uri = `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}/${name}`
    }
  }

  /** of the default export; '' before {@link bind} */
  get uri(): string {
    return this.#uri
  }

  /** The volume's metrics are there from now on. @returns where; undefined: nowhere */
  measure(volume: Volume): string | undefined {
    this.#metrics?.measure(volume)
    return this.#metrics?.uri
  }

  /** Of the export's address the engine takes care. */
  close(): void {
    this.#metrics?.close()
  }
}

function naming<Result>(option: string, call: () => Result): Result {
  try {
    return call()
  } catch (failure) {
    throw nameOption(option, failure)
  }
}
