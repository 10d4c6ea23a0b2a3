import { CallbackScope } from '@rdmakit/verbs/internal'
import {
  type Lane,
  type LaneRequirements,
  type LaneResources,
  laneHandles,
  type VerbsResource,
} from './engine-lane.js'
import { type BlockEngineOptions, nativeOptions } from './engine-options.js'
import {
  type NativeDropped,
  type NativeEngine,
  type NativeEvent,
  type NativeLaneStatistics,
  type NativeRecordedReplica,
  type NativeStatistics,
  native,
} from './native.js'

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
  /** milliseconds; an operation is given up after one operation timeout, and its flush after another */
  readonly #patience: number
  #closing: Promise<void> | undefined

  /** @throws EINVAL: an option out of range; ENOMEM or another errno: the page map cannot be had */
  constructor(options: BlockEngineOptions) {
    this.size = BigInt(options.size)
    this.slabSize = options.slabSize ?? 64 * 1024 * 1024
    const given = nativeOptions(options, this.slabSize)
    this.#patience = 2 * given.operationTimeout + 30_000
    const scope = new CallbackScope('BlockEngine')
    this.#engine = native.createEngine(
      given,
      scope.wrap((event) => this.#emit(event)),
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

  /**
   * Pages that the last process to use `pageMap` left in the middle of a WRITE that was never answered: their replicas
   * may differ until somebody writes them.
   */
  get leftClaimed(): readonly number[] {
    return native.leftClaimed(this.#engine)
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
   * The server with index `from` has come back under another index, with all that slab `index` had there: every lane
   * must reach it, as for {@link addReplica}.
   * @throws EINVAL: index or mapping out of range; ENOENT: no live replica is on record at `from`; EEXIST; ESTALE: another
   *   replica is usable, or failed later, and has what this one missed
   */
  moveReplica(index: number, from: number, to: SlabMapping): void {
    native.moveReplica(this.#engine, index, from, to)
  }

  /** Indexes of servers that have failed, in the order in which they did. */
  failedServers(): readonly number[] {
    return native.failedServers(this.#engine)
  }

  /**
   * From now on requests for a slab whose live replicas have all failed wait, until each is {@link dropReplica dropped}
   * (then EIO) or {@link moveReplica moved}. Only one of them may be: the last of
   * {@link failedServers}, see docs/page-service/reconnect.md.
   */
  waitForServers(): void {
    native.setWaits(this.#engine)
  }

  /**
   * The live replica of slab `index` at `server` is to be dropped: it is written to as before, and no WRITE that begins
   * from now on is answered because it has it. {@link synchronize}, then {@link dropReplica}.
   * @throws ENOENT: no live one is there; EBUSY: no other usable one is
   */
  retireReplica(index: number, server: number): void {
    native.retireReplica(this.#engine, index, server)
  }

  /**
   * Slab `index` has no replica at `server` any more. Its memory may be given back after
   * {@link synchronize}; before that, operations may still be under way to it. A replica that was retired and is
   * complete becomes live where no other is usable.
   * @param absent this process never reached `server`: whatever it holds does not count
   * @throws ENOENT: it has none there; EBUSY: it is live and its server has not failed ({@link retireReplica} comes
   *   first), or it is the last usable one
   */
  dropReplica(index: number, server: number, absent = false): DroppedReplica {
    return native.dropReplica(this.#engine, index, server, absent)
  }

  /**
   * Of a thin engine: a place for whichever slab is written first, with replicas on different servers. At most 64.
   * @throws EINVAL: mapping out of range; ENOSPC: 64 are there
   */
  addSpare(id: number, ...replicas: SlabMapping[]): void {
    native.addSpare(this.#engine, id, replicas)
  }

  /** Takes a spare place back. @returns false when a lane has taken it, or is just looking at it */
  removeSpare(id: number): boolean {
    return native.removeSpare(this.#engine, id)
  }

  /** @returns which slabs took which spare places since the last call; {@link addSpare} has room for others then */
  collectSpares(): readonly { readonly id: number; readonly slab: number }[] {
    return native.collectSpares(this.#engine)
  }

  /**
   * There will be no spare place: first WRITEs are answered ENOSPC instead of waiting, until {@link addSpare}, or until
   * pages become unset. When some have since {@link takeCleared}, only those that waited at the last call, too, are.
   */
  setExhausted(): void {
    native.setExhausted(this.#engine)
  }

  /** @returns slabs of which pages became unset since the last call, and which may be empty now */
  takeCleared(): readonly number[] {
    return native.takeCleared(this.#engine)
  }

  /**
   * Takes the place from an empty slab, which is then as if it had never been written. Its memory may be used for
   * something else after {@link synchronize}.
   * @returns false when it is not empty, or has no place, or a replica of it is being filled
   */
  vacateSlab(index: number): boolean {
    return native.vacateSlab(this.#engine, index)
  }

  /**
   * Fills the replica of slab `index` at `server` from a live one, or from the backup when none is left, while
   * lanes go on, and makes it live.
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
   * @throws ETIMEDOUT: a device gives its work requests not even back when its queue pair is in error; whatever was to be
   *   reused or given back may still be written to
   */
  async synchronize(): Promise<void> {
    const epoch = native.synchronize(this.#engine)
    await this.#outcome(['synchronized'], (event) => event.type === 'synchronized' && event.epoch >= epoch, {
      milliseconds: this.#patience,
      failure: () =>
        Object.assign(new Error(`a lane has operations under way after ${this.#patience / 1000} s`), {
          code: 'ETIMEDOUT',
        }),
    })
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
   * Gives a running lane the queue pair of one more server. A server that failed comes back under another index, or
   * after {@link releaseServer}.
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
   * The index of a server that has failed is free for another one when this resolves: nothing of the old one is under
   * way, and no lane has its queue pair.
   * @throws ENOENT: it has not failed; EBUSY: a slab or a spare place names it, it is being refilled, or the index of
   *   another server is being released; ETIMEDOUT as {@link synchronize}
   */
  async releaseServer(server: number): Promise<void> {
    native.disconnectServer(this.#engine, server)
    await this.synchronize()
    native.releaseServer(this.#engine, server)
  }

  /**
   * Takes the address of a Unix socket with mode 0600, a stale one's place too. Clients that connect wait for
   * {@link acceptClients}.
   * @throws EADDRINUSE: a live server listens there; EEXIST: the path is not a socket
   */
  bindUnix(path: string): void {
    native.bindUnix(this.#engine, path)
  }

  /** The same of TCP. Port 0 takes a free one. @returns the bound address */
  bindTcp(host: string, port: number): { host: string; port: number } {
    return native.bindTcp(this.#engine, host, port)
  }

  /** Accepts the clients of all addresses that are bound. */
  acceptClients(): void {
    native.acceptClients(this.#engine)
  }

  /** Accepts NBD clients on a Unix socket. @throws as {@link bindUnix} */
  listenUnix(path: string): void {
    this.bindUnix(path)
    this.acceptClients()
  }

  /** Accepts NBD clients on TCP. @returns the bound address */
  listenTcp(host: string, port: number): { host: string; port: number } {
    const bound = this.bindTcp(host, port)
    this.acceptClients()
    return bound
  }

  /**
   * Lets a lane's thread run on these processors only, by their numbers (sched_setaffinity(2)).
   * @throws EINVAL: no such lane, or it may run on none of them
   */
  pinLane(lane: number, processors: readonly number[]): void {
    native.pinLane(this.#engine, lane, processors)
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
   * Starts each of `lanes` on a queue of a ublk device, or none. `descriptor`: its character device, which stays the
   * caller's. The kernel gets the disk once each of its queues has a lane.
   * @throws EBUSY: a lane serves another connection
   */
  attachDevice(lanes: readonly number[], descriptor: number): void {
    native.attachDevice(this.#engine, [...lanes], descriptor)
  }

  /**
   * Lets a lane finish: it reads no further request, ends in the middle of none, and answers what it has. On a queue of
   * a device it rests then: until {@link resumeLane}, or {@link close}, after which the kernel gives the queue to whoever
   * recovers the device.
   * @returns the socket's descriptor, now the caller's, for {@link attachSocket} here or in another process;
   *   undefined when the lane served no connection, or a queue, or was told to resume
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

  /** After {@link yieldLane}: a lane goes on with its queue, or with what it has not given away yet. */
  resumeLane(lane: number): void {
    native.resumeLane(this.#engine, lane)
  }

  /**
   * From now on the backup's file is this engine's: its header gets another generation, soon. Before, nothing that an
   * older process of the volume would refuse is written to it. Nothing without a backup.
   */
  stampBackup(): void {
    native.stampBackup(this.#engine)
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

  /** The end that the first of these events brings which `judge` does not call false, or that time brings. */
  #outcome(
    types: EngineEvent['type'][],
    judge: (event: EngineEvent) => boolean | Error,
    late?: { readonly milliseconds: number; readonly failure: () => Error },
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = late && setTimeout(() => end(late.failure()), late.milliseconds)
      timer?.unref()
      const end = (failure?: Error) => {
        clearTimeout(timer)
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
