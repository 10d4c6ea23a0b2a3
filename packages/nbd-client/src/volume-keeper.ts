import type { BackupOptions } from './backup.js'
import type { BlockEngineOptions } from './engine-options.js'
import type { Compress } from './native.js'
import type { KeptContext, KeptDevice, KeptServer, KeptVolume, StateFolder } from './state-folder.js'
import type { VolumeOptions } from './volume-options.js'
import type { VolumeServer } from './volume-server.js'

/** What the engine keeps in the state folder. */
export type KeptFiles = Required<Pick<BlockEngineOptions, 'pageMap' | 'pageChecksums' | 'slabMap'>> &
  Pick<BlockEngineOptions, 'pageLengths'>

/** Keeps volume.json up to date: what it says of a server or the device is there before either is used. */
export class VolumeKeeper {
  readonly #folder: StateFolder
  readonly #fixed: Pick<KeptVolume, 'size' | 'replicas' | 'thin'>
  #slabSize = 0
  #servers: KeptServer[] = []
  #context: KeptContext | undefined
  #device: KeptDevice | undefined
  #served = false
  #compressed = false

  constructor(folder: StateFolder, fixed: Pick<KeptVolume, 'size' | 'replicas' | 'thin'>, kept?: KeptVolume) {
    this.#folder = folder
    const { size, replicas, thin } = fixed
    this.#fixed = { size, replicas, ...(thin === true ? { thin } : {}) }
    if (kept === undefined) return
    this.#slabSize = kept.slabSize
    this.#servers = [...kept.servers]
    this.#context = kept.context
    this.#device = kept.device
    this.#served = kept.served ?? false
    this.#compressed = kept.compressed ?? false
  }

  /**
   * What makes a volume one that can be taken over, and its backup too. Pages that are compressed once stay so for
   * the next process, whatever that says of `compress`.
   */
  options(
    linger: number,
    backup?: BackupOptions,
    compress: Compress = 'none',
  ): Pick<VolumeOptions, 'linger' | 'joined' | 'backup'> & { engine: KeptFiles } {
    if (backup === undefined) this.#folder.forgetBackup()
    if (compress !== 'none' && !this.#compressed) {
      this.#compressed = true
      // A new volume is written when its servers have joined.
      if (this.#servers.length > 0) this.#write()
    }
    return {
      ...(backup === undefined ? {} : { backup: { ...backup, map: this.#folder.backupMap } }),
      linger,
      joined: (servers) => this.#joined(servers),
      engine: {
        pageMap: this.#folder.pageMap,
        pageChecksums: this.#folder.pageChecksums,
        slabMap: this.#folder.slabMap,
        ...(this.#compressed ? { pageLengths: this.#folder.pageLengths } : {}),
      },
    }
  }

  device(device: KeptDevice): void {
    this.#device = device
    this.#write()
  }

  /** Clients come from now on. */
  served(): void {
    this.#served = true
    this.#write()
  }

  #joined(servers: readonly VolumeServer[]): void {
    for (const server of servers) {
      if (this.#servers.some(({ index }) => index === server.index) || !server.reached) continue
      const { index, uris, session } = server
      this.#slabSize = session.slabSize
      this.#context = { provider: session.context.provider, name: session.context.deviceName }
      this.#servers.push({ index, uris, identity: session.identity, linger: session.linger })
    }
    this.#write()
  }

  #write(): void {
    this.#folder.write({
      ...this.#fixed,
      slabSize: this.#slabSize,
      servers: this.#servers,
      ...(this.#context === undefined ? {} : { context: this.#context }),
      ...(this.#device === undefined ? {} : { device: this.#device }),
      ...(this.#served ? { served: true } : {}),
      ...(this.#compressed ? { compressed: true } : {}),
    })
  }
}
