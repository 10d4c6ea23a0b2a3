import { NO_TAKE_OVER, type SessionOptions, type TakeOver } from '@rdmakit/swap-server'
import { type BackupOptions, pagesOfLane } from '../engine/backup-options.js'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeEngineOptions } from '../engine/volume-engine-options.js'
import type { VolumeServer } from '../servers/volume-server.js'

/** bytes */
const BACKUP_QUEUE = 16 * 2 ** 20

/** `Front`: what the engine's front is told beside, see {@link MakeEngine}. */
export interface VolumeOptions<Engine extends VolumeEngine = VolumeEngine, Front extends object = object> {
  /** one entry for each server: its URIs, tried in order until one answers */
  readonly servers: readonly (readonly string[])[]
  /** bytes, a multiple of 4096 */
  readonly size: number
  /** requests' ways into the engine: connections that can be served at once, 1 … 64 */
  readonly lanes: number
  /** copies of each slab, on different servers: 1 (default) to 3 */
  readonly replicas?: number
  /** slabs allocated ahead on each server for the repair of others; default 1 with replicas, else 0 */
  readonly spares?: number
  /**
   * Take memory of the servers when a slab is first written, and give it back when all of it was discarded. A first
   * write fails when no server has memory left then. Default false: all of it at the start, for as long as it lives.
   */
  readonly thin?: boolean
  /** a copy on this machine, not of a thin volume; default: none */
  readonly backup?: BackupOptions
  readonly engine?: Omit<VolumeEngineOptions, 'size' | 'slabSize' | 'thin' | 'backup'> & Front
  /** whose memory it takes, and what proves it; asked for each session, also of a server that comes back */
  readonly access?: Pick<SessionOptions, 'tenant' | 'key'>
  /** milliseconds that sessions outlive this process, for {@link takeOverVolume} by the next; default 0 */
  readonly linger?: number
  /**
   * milliseconds that requests wait for a server that is gone and has the only copy of their pages, before they fail;
   * so long at least its session lingers; default 0. With a backup nothing waits, also when that has failed: what a
   * server has missed may have been there.
   */
  readonly reconnect?: number
  /**
   * The number by which servers tell this process from others that have its state folder, or a copy. Called once, when
   * all else is in order and before a server hears of it, and kept by then (docs/page-service/fencing.md).
   * Default: none, for nobody else can have the volume.
   */
  readonly raise?: () => TakeOver
  /**
   * told when a server takes part, before anything is placed there, and when one is gone for good, before its index is
   * another's: the indexes and sessions of these must be kept now, and of no other
   */
  readonly keep?: (servers: readonly VolumeServer[]) => void
  /** told when a server is waited for: its records are in order, and the next process may believe it too */
  readonly away?: (server: VolumeServer) => void
  /** called when the engine is there and nothing is allocated yet: to take what it needs, and may not get */
  prepare?(engine: Engine): void
  readonly signal?: AbortSignal
  /** told of each step on the way, for people */
  readonly progress?: (step: string) => void
}

/** No server has anything of the volume any more. */
export class NothingLeftError extends Error {
  override readonly name = 'NothingLeftError'
}

/** What the failure of a server means for the volume. */
export interface ServerFailure {
  readonly server: VolumeServer
  readonly reason: string
  /** bytes that have a replica less and can still be read */
  readonly degraded: number
  /** bytes that no server has any more, and that are read from the backup */
  readonly backedUp: number
  /** bytes of which it has the only copy, and that wait for it: it is told again when they need not wait any more */
  readonly away: number
  /** bytes of which no copy is left */
  readonly lost: number
}

/** With the number that {@link VolumeOptions.raise} has given. */
export interface RaisedOptions extends VolumeOptions {
  readonly takeOver: TakeOver
}

export function raised(options: VolumeOptions): RaisedOptions {
  return { ...options, takeOver: options.raise?.() ?? NO_TAKE_OVER }
}

export function sessionOptions({
  access,
  linger = 0,
  reconnect = 0,
  signal,
  takeOver,
}: RaisedOptions): SessionOptions {
  return {
    ...access,
    takeOver,
    linger: Math.max(linger, reconnect),
    ...(signal === undefined ? {} : { signal }),
  }
}

/** Makes the engine of a volume, with its front. @throws Error */
export type MakeEngine<Engine extends VolumeEngine, Front extends object> = (
  settings: VolumeEngineOptions & Front,
) => Engine

/** What the engine is told. */
export function settingsOf<Front extends object>(
  { backup, engine, lanes, size, thin = false }: VolumeOptions<VolumeEngine, Front>,
  slabSize: number,
): VolumeEngineOptions & Front {
  const settings: VolumeEngineOptions = {
    ...engine,
    ...(backup === undefined
      ? {}
      : { backup: { ...backup, pages: pagesOfLane(backup.queue ?? BACKUP_QUEUE, lanes) } }),
    size,
    slabSize,
    thin,
  }
  // What its front is told is in `engine`.
  return settings as VolumeEngineOptions & Front
}

/** Says which servers would give the volume's memory to a second process. */
export function sayUnfenced(servers: readonly VolumeServer[], { takeOver, progress }: RaisedOptions): void {
  if (takeOver.number === 0) return
  for (const { failure, session } of servers.filter(({ reached }) => reached))
    if (failure === undefined && !session.fences)
      progress?.(
        `warning: ${session.uri} does not compare take-over numbers: a second process with a copy of the state folder would get this volume's memory; upgrade swap-server there`,
      )
}
