import { NO_TAKE_OVER, type SessionOptions, type TakeOver } from '@rdmakit/swap-server'
import { integerInRange, millisecondsOrNone } from '@rdmakit/verbs/internal'
import { type BackupOptions, pagesOfLane } from '../engine/backup-options.js'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeEngineOptions } from '../engine/volume-engine-options.js'
import type { VolumeServer } from '../servers/volume-server.js'

const MAX_LANES = 64
/** bytes */
const BACKUP_QUEUE = 16 * 2 ** 20

/** `Front`: what the engine's front is told beside, see {@link MakeEngine}. */
export interface VolumeOptions<Engine extends VolumeEngine = VolumeEngine, Front extends object = object> {
  /** one entry for each server: its URIs, tried in order until one answers */
  readonly servers: readonly (readonly string[])[]
  /** bytes, a multiple of 4096 */
  readonly size: number
  /** maximum number of connections that the engine serves at once, 1 … 64 */
  readonly lanes: number
  /**
   * true (default): all memory of the lanes, about 14 MiB each, is there from the start, so that no page waits for memory.
   * false: it is taken as lanes use it, but on cards, which pin it
   */
  readonly populated?: boolean | undefined
  /** copies of each slab, on different servers: 1 (default) to 3 */
  readonly replicas?: number | undefined
  /** slabs allocated ahead on each server for the repair of others; default 1 with replicas, else 0 */
  readonly spares?: number | undefined
  /**
   * Allocate a slab when it is first written, and free it when all of it has been discarded. A first write fails when no
   * server has memory left. Default false: allocate all slabs at the start, for the life of the volume.
   */
  readonly thin?: boolean | undefined
  /** a copy on this machine, not of a thin volume; default: none */
  readonly backup?: BackupOptions | undefined
  readonly engine?: (Omit<VolumeEngineOptions, 'size' | 'slabSize' | 'thin' | 'backup'> & Front) | undefined
  /** tenant and key; read again for each session, including those with servers that come back */
  readonly access?: Pick<SessionOptions, 'tenant' | 'key'> | undefined
  /**
   * milliseconds that sessions outlive this process, for {@link takeOverVolume} by the next; at most 2^31 − 1, which is
   * what Infinity counts as; default 0
   */
  readonly linger?: number | undefined
  /**
   * milliseconds for which requests wait for a lost server with the only copy of their pages; its session lingers at
   * least as long; a range as of {@link linger}, default 0: fail at once. With a backup nothing waits, even after the backup has failed, because
   * writes that a server missed may have been there.
   */
  readonly reconnect?: number | undefined
  /**
   * Returns the number by which servers distinguish this process from others with its state folder or a copy. Called
   * once, when everything else is in order; it must record the number before it returns, so before any server learns it
   * (docs/page-service/fencing.md). Default: no number, because no other process can have the volume.
   */
  readonly raise?: (() => TakeOver) | undefined
  /**
   * called when a server joins, before anything is placed there, and when one is gone for good, before its index is
   * reused: record the indexes and sessions of exactly these servers
   */
  readonly keep?: ((servers: readonly VolumeServer[]) => void) | undefined
  /** called when the volume waits for a server: its records are in order, so the next process may trust it too */
  readonly away?: ((server: VolumeServer) => void) | undefined
  /** called when the engine exists and nothing is allocated yet: to acquire resources, which may fail */
  prepare?(engine: Engine): void
  readonly signal?: AbortSignal | undefined
  /** called with a text for people at each step */
  readonly progress?: ((step: string) => void) | undefined
}

/** No server has anything of the volume any more. */
export class NothingLeftError extends Error {
  override readonly name = 'NothingLeftError'
}

/** What the failure of a server means for the volume. */
export interface ServerFailure {
  readonly server: VolumeServer
  readonly reason: string
  /** bytes that have lost a replica and can still be read */
  readonly degraded: number
  /** bytes that no server has any more and that are read from the backup */
  readonly backedUp: number
  /** bytes with their only copy there, which wait for the server; a second failure reports the end of the wait */
  readonly away: number
  /** bytes that have no copy left */
  readonly lost: number
}

/** With the number that {@link VolumeOptions.raise} has given. */
export interface RaisedOptions extends VolumeOptions {
  readonly takeOver: TakeOver
}

/** @throws UsageError: a number that is out of its range, before anything has begun */
export function raised(options: VolumeOptions): RaisedOptions {
  const { lanes, spares = 0, linger = 0, reconnect = 0 } = options
  integerInRange('lanes', lanes, 1, MAX_LANES)
  integerInRange('spares', spares)
  return {
    ...options,
    linger: millisecondsOrNone('linger', linger),
    reconnect: millisecondsOrNone('reconnect', reconnect),
    takeOver: options.raise?.() ?? NO_TAKE_OVER,
  }
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
  // The front's options are in `engine`.
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
