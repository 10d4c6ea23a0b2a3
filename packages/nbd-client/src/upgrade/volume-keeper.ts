import { statSync } from 'node:fs'
import type {
  BackupOptions,
  Compress,
  KeptServer,
  VolumeEngineOptions,
  VolumeServer,
} from '@rdmakit/remote-volume'
import { ConfigurationError, NO_TAKE_OVER, nextTakeOver, type TakeOver } from '@rdmakit/swap-server'
import type { VolumeOptions } from '../engine/block-volume.js'
import type { StateFolder } from './state-folder.js'
import type { KeptDevice, KeptVolume } from './volume-json.js'

/** The engine's files in the state folder. */
export type KeptFiles = Required<Pick<VolumeEngineOptions, 'pageMap' | 'pageChecksums' | 'slabMap'>> &
  Pick<VolumeEngineOptions, 'pageLengths'>

/** Keeps volume.json up to date: its record of a server or the device is there before either is used. */
export class VolumeKeeper {
  readonly #folder: StateFolder
  /** as the file has it */
  #kept: KeptVolume

  constructor(folder: StateFolder, fixed: Pick<KeptVolume, 'size' | 'replicas' | 'thin'>, kept?: KeptVolume) {
    this.#folder = folder
    const { size, replicas, thin } = fixed
    this.#kept = { slabSize: 0, servers: [], ...kept, size, replicas, ...(thin === true ? { thin } : {}) }
  }

  /**
   * The options that let a volume and its backup be taken over. Once pages are compressed, they stay so for
   * the next process, whatever its `compress` says.
   * @throws ConfigurationError: it is unknown which they are
   */
  options(
    linger: number,
    backup?: BackupOptions,
    compress: Compress = 'none',
  ): Pick<VolumeOptions, 'linger' | 'raise' | 'keep' | 'away' | 'backup'> & { engine: KeptFiles } {
    if (this.#kept.compressed === true) this.#checkLengths()
    // A new volume is written when its servers have joined, another one by compresses().
    else if (compress !== 'none' && this.#kept.servers.length === 0)
      this.#kept = { ...this.#kept, compressed: true }
    return {
      ...(backup === undefined ? {} : { backup: { ...backup, map: this.#folder.backupMap } }),
      linger,
      raise: () => this.raise(),
      keep: (servers) => this.#keepServers(servers),
      away: (server) => this.#away(server),
      engine: {
        pageMap: this.#folder.pageMap,
        pageChecksums: this.#folder.pageChecksums,
        slabMap: this.#folder.slabMap,
        ...(this.#kept.compressed === true || compress !== 'none'
          ? { pageLengths: this.#folder.pageLengths }
          : {}),
      },
    }
  }

  /**
   * The number of this process, above that of the one before, on disk before any server hears of it.
   * @param handedOver by a process that still exists, and continues when this one fails: if it knows no
   * numbers, it could not read one, nor get the sessions back
   */
  raise(handedOver = false): TakeOver {
    const before = this.#kept.takeOver
    if (handedOver && before === undefined) return NO_TAKE_OVER
    const takeOver = nextTakeOver(before ?? NO_TAKE_OVER)
    // A new volume is written when its servers have joined.
    if (this.#kept.servers.length === 0) this.#kept = { ...this.#kept, takeOver }
    else this.#write({ takeOver })
    return takeOver
  }

  /** Pages may be compressed from now on. The engine has its file, and no client writes yet. */
  compresses(): void {
    if (this.#kept.compressed !== true) this.#write({ compressed: true })
  }

  /**
   * The kernel is about to be asked for a device. A process that finds this, and no {@link device}, ends the
   * resulting device.
   */
  connecting(identifier: string): void {
    this.#write({ connecting: identifier })
  }

  device(device: KeptDevice): void {
    const { connecting: _, ...kept } = this.#kept
    this.#replace({ ...kept, device })
  }

  /** Clients come from now on. @param boot the machine's, for what they write does not outlive it */
  served(boot: string): void {
    this.#write({ served: true, boot })
  }

  #keepServers(servers: readonly VolumeServer[]): void {
    const isOf = (kept: KeptServer) => (server: VolumeServer) =>
      server.index === kept.index && server.identity?.session === kept.identity.session
    // In the order in which they joined: of several incarnations of a server the last counts.
    const still = this.#kept.servers.filter((kept) => servers.some(isOf(kept)))
    const joined = servers.filter((server) => server.reached && !still.some((kept) => isOf(kept)(server)))
    const context = joined.at(-1)?.session.context
    this.#write({
      servers: [
        ...still,
        ...joined.map(({ index, uris, session: { identity, linger } }) => ({
          index,
          uris,
          identity,
          linger,
        })),
      ],
      ...(joined[0] && { slabSize: joined[0].session.slabSize }),
      ...(context && { context: { provider: context.provider, name: context.deviceName } }),
    })
  }

  #away({ index }: VolumeServer): void {
    this.#write({
      servers: this.#kept.servers.map((server) =>
        server.index === index ? { ...server, away: true } : server,
      ),
    })
  }

  /** An engine makes the file that it does not find, and compressed pages would be taken for others by that. */
  #checkLengths(): void {
    const file = this.#folder.pageLengths
    if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0) return
    throw new ConfigurationError(
      `${file} is missing or empty: without it the compressed pages of the volume are unknown; detach its device, if it has one, and remove the folder's files`,
    )
  }

  #write(change: Partial<KeptVolume>): void {
    this.#replace({ ...this.#kept, ...change })
  }

  /** If the file cannot be written, the state stays the old one: a retry starts from there. */
  #replace(kept: KeptVolume): void {
    this.#folder.write(kept)
    this.#kept = kept
  }
}
