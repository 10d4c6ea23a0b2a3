import { availableParallelism } from 'node:os'
import type { BackupOptions } from './backup.js'
import {
  type NativeDropped,
  type NativeEngine,
  type NativeEvent,
  type NativeLaneRequirements,
  type NativeLaneStatistics,
  type NativeRecordedReplica,
  type NativeStatistics,
  native,
  type VerbsHandle,
} from './native.js'

/** Any resource of `@rdmakit/verbs`: what matters is the external that it carries. */
export interface VerbsResource {
  readonly handle: VerbsHandle
}

/**
 * How a lane awaits completions. `poll` spins for ever (a core of its own), `event` sleeps at once,
 * `adaptive` spins for about as long as completions have been taking and then sleeps.
 */
export type WaitMode = 'poll' | 'event' | 'adaptive'

/** A part of the volume under a name. Parts may overlap: one writable and one read-only view, say. */
export interface ExportOptions {
  /** at most 4096 bytes; default '' */
  readonly name?: string
  /** one line for people, as `nbdinfo --list` shows it; at most 4096 bytes; default '' */
  readonly description?: string
  /** bytes from the start of the volume, a multiple of 4096; default 0 */
  readonly offset?: number | bigint
  /** bytes, a multiple of 4096; default: up to the end of the volume */
  readonly size?: number | bigint
  /** refuse WRITE, TRIM and WRITE_ZEROES with EPERM; default false */
  readonly readOnly?: boolean
}

/**
 * TLS for NBD clients (STARTTLS), by GnuTLS, in a native thread for each encrypted connection. Give either
 * `certificates` or `sharedKeys`.
 */
export interface TlsOptions {
  /** `on`: clients may use it; `required`: whoever does not is refused everything else */
  readonly mode: 'on' | 'required'
  /** folder with server-cert.pem, server-key.pem and, for `verifyPeer`, ca-cert.pem */
  readonly certificates?: string
  /** file with a line `name:hex key` for each client, as psktool(1) writes it */
  readonly sharedKeys?: string
  /** with `certificates`: refuse clients without one that ca-cert.pem has signed; default false */
  readonly verifyPeer?: boolean
}

export interface BlockEngineOptions {
  /** bytes; a multiple of 4096 */
  readonly size: number | bigint
  /** bytes; a power of two ≥ 1 MiB; default 64 MiB. The last slab may be used in part. */
  readonly slabSize?: number
  /** refuse WRITE, TRIM and WRITE_ZEROES with EPERM; default false */
  readonly readOnly?: boolean
  /** milliseconds that one RDMA operation may take before its server counts as failed; default 4000 */
  readonly operationTimeout?: number
  /** default `adaptive` */
  readonly waitMode?: WaitMode
  /**
   * Microseconds that `adaptive` may spin at most; it does not spin at all when completions have been
   * taking longer. Default 50, and 10 below 4 processors: there the core that spins is missed by whoever
   * does the work (4 KiB reads over iwarp:// at depth 1 on 2 busy cores: 28,000/s with 50, 41,000/s
   * asleep), unless the device answers within a few microseconds.
   */
  readonly maxSpin?: number
  /** touch the whole page map at start (2 bits per 4 KiB of volume); default false */
  readonly prefault?: boolean
  /**
   * For swap: the lanes are marked as part of the I/O path (PR_SET_IO_FLUSHER) and their arenas locked.
   * What is not granted is a warning of {@link BlockEngine.addLane}. Default false.
   */
  readonly ioFlusher?: boolean
  /**
   * When a write to several replicas is answered: `all` (default), when every live one has it; `one`, when
   * the first has it, which may then be lost with that server (EIO, never old data); `backup`, when every live
   * one and the backup have it.
   */
  readonly acknowledge?: 'all' | 'one' | 'backup'
  /** a copy on this machine; `pages` of the queue are each lane's, 128 … 4096, default 1024; default: none */
  readonly backup?: Omit<BackupOptions, 'queue'> & { readonly pages?: number }
  /** bytes per second that {@link BlockEngine.refill} copies at most; default 0, no limit */
  readonly refillRate?: number
  /**
   * File (on tmpfs, such as /run) that keeps the page map, so that a successor of this process knows
   * which pages were written. Created when missing, refused with EINVAL when it is of another size. Writes
   * that were never answered when the process died must be repeated by whoever sent them, as the kernel does.
   * Default: memory of this process; a successor would then read zeros.
   */
  readonly pageMap?: string
  /**
   * Keep the CRC32C of each page that was written as a whole, and check it when it is read: a wrong page is
   * repaired from another replica, or EIO. 4 bytes of memory a page, as far as pages are written. Default true.
   */
  readonly checksums?: boolean
  /** as {@link BlockEngineOptions.pageMap}, for the checksums; used with `checksums` only */
  readonly pageChecksums?: string
  /**
   * File, beside `pageMap`, that keeps where the slabs are and which servers have failed (see
   * {@link BlockEngine.lookUpSlab}). The same rules. Default: memory of this process.
   */
  readonly slabMap?: string
  /**
   * What NBD clients find here. The first one is also what they get who name none, unless another one has
   * the empty name. Default: the whole volume under the empty name.
   */
  readonly exports?: readonly ExportOptions[]
  /**
   * Bytes, a power of two of at most 4096: requests that are no multiple of it are refused with EINVAL.
   * Default 1: every request is served, at the price that a part of a page costs a network round trip more
   * when the page was never written.
   */
  readonly minimumBlockSize?: number
  /** default: no TLS; what is wrong with the files is thrown by the constructor (EINVAL) */
  readonly tls?: TlsOptions
  /** milliseconds for a client's whole handshake; default 10000 */
  readonly handshakeTimeout?: number
  /**
   * Handshakes under way at once; default 256. When there are more, the oldest is closed: a client that
   * speaks the protocol is done within milliseconds, so no number of silent or slow ones keeps it out.
   */
  readonly maxHandshakes?: number
  /**
   * Milliseconds that a client on a socket may take for the rest of a request that it has begun (and a second
   * more for each 256 KiB of payload), or for taking the next byte of its answers, before it is thrown out
   * and its lane is free again; default 30000, 0: for ever. Between requests it may rest as long as it likes.
   */
  readonly stallTimeout?: number
  /**
   * Milliseconds that a client waits for a free lane before it is refused; default 2000. The export
   * says CAN_MULTI_CONN from 4 lanes on, for nbdcopy opens 4 connections and fails when one is refused.
   */
  readonly laneWait?: number
}

/** Where a slab's bytes are. */
export interface SlabMapping {
  /** index of the server, 0 … 1023 */
  readonly server: number
  readonly remoteKey: number
  /** virtual address of the slab's first byte at the server */
  readonly address: bigint
}

/** A replica as the slab map has it. */
export type RecordedReplica = NativeRecordedReplica

/** What JavaScript must allocate for one lane. */
export type LaneRequirements = NativeLaneRequirements

/** The verbs objects of one lane. They must not be used by anyone else while the engine lives. */
export interface LaneResources {
  /** made with `manual` progress or automatic, ≥ {@link LaneRequirements.completionQueueEntries} */
  readonly completionQueue: VerbsResource
  /** the queue's channel; may be missing in wait mode `poll` only */
  readonly channel?: VerbsResource
  /** by server index; null where this lane does not reach that server (yet) */
  readonly queuePairs: readonly (VerbsResource | null)[]
  /**
   * The arena: ≥ {@link LaneRequirements.arenaBytes} bytes, registered with local write access. One
   * region for all servers, or one per server index over the same memory when servers sit on
   * different devices.
   */
  readonly memoryRegions: readonly VerbsResource[]
}

export interface Lane {
  readonly index: number
  /** protections that could not be had, each a sentence to print */
  readonly warnings: readonly string[]
}

export type DroppedReplica = NativeDropped
export type EngineEvent = NativeEvent
export type LaneStatistics = NativeLaneStatistics
export type EngineStatistics = NativeStatistics

type Listener<Type extends EngineEvent['type']> = (event: Extract<EngineEvent, { type: Type }>) => void

/**
 * A volume of remote memory served as a block device. It moves pages between NBD connections and RDMA
 * queue pairs in native threads (lanes); JavaScript sets it up and hears of failures, never of pages.
 */
export class BlockEngine {
  readonly size: bigint
  readonly slabSize: number
  readonly slabCount: number
  /** NBD transmission flags of the export, as the kernel takes them in NBD_ATTR_SERVER_FLAGS */
  readonly exportFlags: number
  readonly #engine: NativeEngine
  readonly #listeners = new Map<string, Set<(event: EngineEvent) => void>>()
  /** what still waits for an event of the engine */
  readonly #waiting = new Set<(failure?: Error) => void>()
  #closing: Promise<void> | undefined

  /** @throws EINVAL: an option out of range; ENOMEM or another errno: the page map cannot be had */
  constructor(options: BlockEngineOptions) {
    this.size = BigInt(options.size)
    this.slabSize = options.slabSize ?? 64 * 1024 * 1024
    this.#engine = native.createEngine(
      {
        size: this.size,
        slabSize: BigInt(this.slabSize),
        readOnly: options.readOnly ?? false,
        operationTimeout: options.operationTimeout ?? 4000,
        waitMode: options.waitMode ?? 'adaptive',
        maxSpin: options.maxSpin ?? (availableParallelism() < 4 ? 10 : 50),
        prefault: options.prefault ?? false,
        ioFlusher: options.ioFlusher ?? false,
        acknowledge: options.acknowledge ?? 'all',
        backup: {
          file: options.backup?.file ?? '',
          map: options.backup?.map ?? '',
          pages: options.backup?.pages ?? 1024,
          sparse: options.backup?.sparse ?? false,
        },
        refillRate: BigInt(options.refillRate ?? 0),
        pageMap: options.pageMap ?? '',
        checksums: options.checksums ?? true,
        pageChecksums: options.pageChecksums ?? '',
        slabMap: options.slabMap ?? '',
        exports: (options.exports ?? [{}]).map((each) => ({
          name: each.name ?? '',
          description: each.description ?? '',
          offset: BigInt(each.offset ?? 0),
          size: BigInt(each.size ?? 0),
          readOnly: each.readOnly ?? false,
        })),
        tls: {
          mode: options.tls?.mode ?? 'off',
          certificates: options.tls?.certificates ?? '',
          sharedKeys: options.tls?.sharedKeys ?? '',
          verifyPeer: options.tls?.verifyPeer ?? false,
        },
        minimumBlockSize: options.minimumBlockSize ?? 1,
        handshakeTimeout: options.handshakeTimeout ?? 10_000,
        maxHandshakes: options.maxHandshakes ?? 256,
        stallTimeout: options.stallTimeout ?? 30_000,
        laneWait: options.laneWait ?? 2000,
      },
      (event) => this.#emit(event),
    )
    this.slabCount = Number((this.size + BigInt(this.slabSize) - 1n) / BigInt(this.slabSize))
    this.exportFlags = native.exportFlags(this.#engine)
  }

  /** What to allocate for each lane. The same for every engine of this build. */
  static laneRequirements(): LaneRequirements {
    return native.laneRequirements()
  }

  /**
   * Says where slab `index` is, for the first time: 1 to 3 replicas on different servers. Requests that touch a slab never mapped are answered EIO when they need it (a
   * READ of pages never written does not).
   * @throws EEXIST: it is mapped already; EINVAL: index or mapping out of range
   */
  mapSlab(index: number, ...replicas: SlabMapping[]): void {
    native.mapSlab(this.#engine, index, replicas)
  }

  /** The replicas of slab `index`, none when it is lost; undefined when it was never mapped. */
  lookUpSlab(index: number): readonly RecordedReplica[] | undefined {
    return native.lookUpSlab(this.#engine, index) ?? undefined
  }

  /**
   * Moves slab `index` to another place while lanes run. `kept`: the new place holds every byte of the
   * old one (the caller copied them, and nothing wrote meanwhile). `lost`: its written pages are gone;
   * they read as EIO until they are written or trimmed again.
   * @throws EBUSY (`lost` only): first writes to the old place are still ending. The slab is unmapped
   *   and answers EIO; call again in a moment.
   */
  replaceSlab(index: number, place: SlabMapping, contents: 'kept' | 'lost'): void {
    native.replaceSlab(this.#engine, index, place, contents === 'lost')
  }

  /**
   * Gives slab `index` one more replica, which is written from now on and read after {@link refill}. Every
   * lane must reach its server: {@link connectServer}, then {@link synchronize}, then this.
   * @throws EINVAL: index or mapping out of range; EEXIST: that server holds one; ENOSPC: it has 3; EHOSTDOWN: that
   *   server has failed; ENODATA: neither a live replica nor a backup is left
   */
  addReplica(index: number, replica: SlabMapping): void {
    native.addReplica(this.#engine, index, replica)
  }

  /**
   * Slab `index` has no replica at `server` any more. Its memory may be given back after
   * {@link synchronize}; before that, operations may still be under way to it.
   * @throws ENOENT: it has none there
   */
  dropReplica(index: number, server: number): DroppedReplica {
    return native.dropReplica(this.#engine, index, server)
  }

  /**
   * Fills the replica of slab `index` at `server` from a live one, or from the backup when none is left, while lanes go on, and makes it live.
   * @throws EBUSY: another refill is under way; ENOTCONN: there is no refill lane; EIO: it failed, and why
   */
  async refill(index: number, server: number): Promise<void> {
    native.refill(this.#engine, index, server)
    await this.#outcome(['slabRefilled', 'refillFailed'], (event) =>
      event.type === 'refillFailed' ? Object.assign(new Error(event.reason), { code: 'EIO' }) : true,
    )
  }

  /**
   * Resolves when nothing that started before this call is under way any more, so that no operation uses a
   * place that was dropped or replaced before, and every lane knows each server that it was connected to.
   * Takes as long as the slowest operation, which the operation timeout bounds.
   */
  async synchronize(): Promise<void> {
    const epoch = native.synchronize(this.#engine)
    await this.#outcome(['synchronized'], (event) => event.type === 'synchronized' && event.epoch >= epoch)
  }

  /**
   * Starts a native thread that serves one connection at a time.
   * @throws EINVAL: a handle of the wrong kind, an arena too small; ENOSPC: 64 lanes exist
   */
  addLane(resources: LaneResources): Lane {
    return native.addLane(this.#engine, ...laneHandles(resources))
  }

  /**
   * Starts the thread that {@link refill} needs; one for the engine. Its index is for {@link connectServer}.
   * @throws EEXIST: there is one; EINVAL as addLane
   */
  addRefillLane(resources: LaneResources): Lane {
    return native.addRefillLane(this.#engine, ...laneHandles(resources))
  }

  /**
   * Gives a running lane the queue pair of one more server. A server that failed never comes back
   * under its index: its next incarnation has another epoch and empty memory, so it gets a new index.
   * @throws EEXIST: the lane has a queue pair for it; EHOSTDOWN: that index has failed
   */
  connectServer(lane: number, server: number, queuePair: VerbsResource, memoryRegion?: VerbsResource): void {
    native.connectServer(this.#engine, lane, server, queuePair.handle, memoryRegion?.handle)
  }

  /** The server is gone (heartbeat lost, disconnected): every lane answers EIO for its slabs. Idempotent. */
  failServer(server: number, reason = 'declared failed'): void {
    native.failServer(this.#engine, server, reason)
  }

  /**
   * Accepts NBD clients on a Unix socket with mode 0600. A stale socket file is replaced.
   * @throws EADDRINUSE: a live server listens there; EEXIST: the path is not a socket
   */
  listenUnix(path: string): void {
    native.listenUnix(this.#engine, path)
  }

  /** Accepts NBD clients on TCP. Port 0 takes a free one. @returns the bound address */
  listenTcp(host: string, port: number): { host: string; port: number } {
    return native.listenTcp(this.#engine, host, port)
  }

  /**
   * Starts `lane` on one end of a socketpair, in transmission phase, and gives the other end's file
   * descriptor for the kernel (or a client without handshake). The caller closes it.
   * @throws EBUSY: the lane serves another connection
   */
  attachSocketpair(lane: number): number {
    return native.attachSocketpair(this.#engine, lane)
  }

  /**
   * How fast all lanes together may use a server, per second; 0: no limit. Requests beyond it wait their
   * turn. Limits below 1 MiB/s and 16 operations/s are raised to these. @throws EINVAL: no such server
   */
  setLimits(server: number, limits: { readonly bytes: number; readonly operations: number }): void {
    native.setLimits(this.#engine, server, BigInt(limits.bytes), BigInt(limits.operations))
  }

  /** What the engine has moved to and from a server, refills too. Never falls. */
  usage(server: number): { readonly bytes: number; readonly operations: number } {
    return native.usage(this.#engine, server)
  }

  /** Milliseconds since slab `index` was used last, within 134; if never: since the engine was made. */
  idle(index: number): number {
    return native.idle(this.#engine, index)
  }

  /**
   * Goes on with a connection in transmission phase that {@link yieldLane} ended elsewhere. The descriptor stays
   * the caller's.
   * @throws EBUSY: the lane serves another connection; EINVAL: it is no stream socket
   */
  attachSocket(lane: number, descriptor: number): void {
    native.attachSocket(this.#engine, lane, descriptor)
  }

  /**
   * Lets a lane finish: it reads no further request, ends in the middle of none, and answers what it has.
   * @returns the socket's descriptor, now the caller's, for {@link attachSocket} here or in another process;
   *   undefined when the lane served no connection
   */
  async yieldLane(lane: number): Promise<number | undefined> {
    let descriptor = -1
    const yielded = this.#outcome(['laneYielded'], (event) => {
      if (event.type !== 'laneYielded' || event.lane !== lane) return false
      descriptor = event.descriptor
      return true
    })
    native.yieldLane(this.#engine, lane)
    await yielded
    return descriptor < 0 ? undefined : descriptor
  }

  /** What the system did not grant for the backup, each a sentence to print. */
  get backupWarnings(): readonly string[] {
    return native.backupWarnings(this.#engine)
  }

  /** Written pages of slab `index` that the backup neither has nor is about to have; 0 without a backup. */
  missingInBackup(index: number): number {
    return native.missingInBackup(this.#engine, index)
  }

  /** A snapshot; each counter is exact, the set of them is not taken at one instant. */
  statistics(): EngineStatistics {
    return native.statistics(this.#engine)
  }

  /** @returns a function that unsubscribes */
  on<Type extends EngineEvent['type']>(type: Type, listener: Listener<Type>): () => void {
    const listeners = this.#listeners.get(type) ?? new Set()
    this.#listeners.set(type, listeners)
    const untyped = listener as (event: EngineEvent) => void
    listeners.add(untyped)
    return () => listeners.delete(untyped)
  }

  /**
   * Stops accepting, lets the lanes answer what is in flight (new requests get ESHUTDOWN) for up to
   * `timeout` milliseconds, ends what remains with EIO and joins the threads. Idempotent.
   * @throws ETIMEDOUT: a lane did not end, for its device gave the work requests back neither done nor
   *   flushed; its memory stays registered
   */
  close(timeout = 5000): Promise<void> {
    this.#closing ??= native.close(this.#engine, timeout).finally(() => {
      for (const end of [...this.#waiting]) end(closed())
    })
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  /** The end that the first of these events brings which `judge` does not call false. */
  #outcome(types: EngineEvent['type'][], judge: (event: EngineEvent) => boolean | Error): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (failure?: Error) => {
        for (const stop of stops) stop()
        this.#waiting.delete(end)
        if (failure === undefined) resolve()
        else reject(failure)
      }
      const stops = types.map((type) =>
        this.on(type, (event) => {
          const verdict = judge(event)
          if (verdict !== false) end(verdict === true ? undefined : verdict)
        }),
      )
      this.#waiting.add(end)
      if (this.#closing !== undefined) end(closed())
    })
  }

  #emit(event: EngineEvent): void {
    for (const listener of this.#listeners.get(event.type) ?? []) listener(event)
  }
}

const closed = () => Object.assign(new Error('the engine was closed'), { code: 'ECANCELED' })

function laneHandles({ completionQueue, channel, queuePairs, memoryRegions }: LaneResources) {
  return [
    completionQueue.handle,
    channel?.handle,
    queuePairs.map((queuePair) => queuePair?.handle),
    memoryRegions.map((region) => region.handle),
  ] as const
}
