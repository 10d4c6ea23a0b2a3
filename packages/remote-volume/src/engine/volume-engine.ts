import { CallbackScope } from '@rdmakit/verbs/internal'
import { EngineEvents } from './engine-events.js'
import {
  type Lane,
  type LaneRequirements,
  type LaneResources,
  laneHandles,
  type VerbsResource,
} from './lane.js'
import type {
  NativeDropped,
  NativeEngine,
  NativeEvent,
  NativeLaneStatistics,
  NativeRecordedReplica,
  NativeStatistics,
  VolumeAddon,
} from './volume-addon.js'
import { nativeOptions, type VolumeEngineOptions } from './volume-engine-options.js'

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
export type VolumeEvent = NativeEvent
export type LaneStatistics = NativeLaneStatistics
export type VolumeStatistics = NativeStatistics

type RefillOutcome = Extract<VolumeEvent, { type: 'slabRefilled' | 'refillFailed' }>

/** The events of a volume's engine by their types. */
export type VolumeEvents = { [Type in VolumeEvent['type']]: Extract<VolumeEvent, { type: Type }> }

/**
 * The native engine of a volume of remote memory. It moves pages between a front, which is where requests come from, and
 * RDMA queue pairs in native threads (lanes); JavaScript sets it up and hears of failures, never of pages. The front
 * belongs to the addon: a package that has one extends this class by how the front is set up.
 *
 * It keeps no event loop alive: its threads serve as long as the process runs. The connections of its queue pairs do
 * (ConnectionId of `@rdmakit/verbs`), and a {@link Volume}.
 */
export class VolumeEngine {
  readonly size: bigint
  readonly slabSize: number
  readonly slabCount: number
  /** what each lane must be given; the same for every engine of one build */
  readonly laneRequirements: LaneRequirements
  protected readonly events = new EngineEvents()
  /** of the native engine */
  protected readonly handle: NativeEngine
  readonly #addon: VolumeAddon
  /** milliseconds; an operation is given up after one operation timeout, and its flush after another */
  readonly #patience: number
  #closing: Promise<void> | undefined

  /**
   * @param front what the addon's front wants to know beside
   * @throws EINVAL: an option out of range; ENOMEM or another errno: the page map cannot be had
   */
  constructor(addon: VolumeAddon, options: VolumeEngineOptions, front: object = {}) {
    this.#addon = addon
    this.size = BigInt(options.size)
    this.slabSize = options.slabSize ?? 64 * 1024 * 1024
    const given = nativeOptions(options, this.slabSize)
    this.#patience = 2 * given.operationTimeout + 30_000
    const scope = new CallbackScope('VolumeEngine')
    this.handle = addon.createEngine(
      { ...given, ...front },
      scope.wrap((event) => this.events.emit(event)),
    )
    this.slabCount = Number((this.size + BigInt(this.slabSize) - 1n) / BigInt(this.slabSize))
    this.laneRequirements = addon.laneRequirements()
  }

  /**
   * Says where slab `index` is, for the first time: 1 to 3 replicas on different servers. Requests that touch a slab never mapped are answered EIO when they need it (a
   * READ of pages never written does not).
   * @throws EEXIST: it is mapped already; EINVAL: index or mapping out of range
   */
  mapSlab(index: number, ...replicas: SlabMapping[]): void {
    this.#addon.mapSlab(this.handle, index, replicas)
  }

  /**
   * Pages that the last process to use `pageMap` left in the middle of a WRITE that was never answered: their replicas
   * may differ until somebody writes them.
   */
  get leftClaimed(): readonly number[] {
    return this.#addon.leftClaimed(this.handle)
  }

  /**
   * The next of {@link leftClaimed}, whose replicas the caller makes alike. With the option `resync` requests for it wait
   * no longer, and a process that dies before the next call leaves it claimed again.
   * @returns undefined: all are done
   */
  nextToResync(): number | undefined {
    return this.#addon.nextToResync(this.handle) ?? undefined
  }

  /** The replicas of slab `index`, none when it is lost; undefined when it was never mapped. */
  lookUpSlab(index: number): readonly RecordedReplica[] | undefined {
    return this.#addon.lookUpSlab(this.handle, index) ?? undefined
  }

  /**
   * Moves slab `index` to another place while lanes run. `kept`: the new place holds every byte of the
   * old one (the caller copied them, and nothing wrote meanwhile). `lost`: its written pages are gone;
   * they read as EIO until they are written or trimmed again.
   * @throws EBUSY (`lost` only): first writes to the old place are still ending. The slab is unmapped
   *   and answers EIO; call again in a moment.
   */
  replaceSlab(index: number, place: SlabMapping, contents: 'kept' | 'lost'): void {
    this.#addon.replaceSlab(this.handle, index, place, contents === 'lost')
  }

  /**
   * Gives slab `index` one more replica, which is written from now on and read after {@link refill}. Every
   * lane must reach its server: {@link connectServer}, then {@link synchronize}, then this.
   * @throws EINVAL: index or mapping out of range; EEXIST: that server holds one; ENOSPC: it has 3; EHOSTDOWN: that
   *   server has failed; ENODATA: neither a live replica nor a backup is left
   */
  addReplica(index: number, replica: SlabMapping): void {
    this.#addon.addReplica(this.handle, index, replica)
  }

  /**
   * The server with index `from` has come back under another index, with all that slab `index` had there: every lane
   * must reach it, as for {@link addReplica}.
   * @throws EINVAL: index or mapping out of range; ENOENT: no live replica is on record at `from`; EEXIST; ESTALE: another
   *   replica is usable, or failed later, and has what this one missed
   */
  moveReplica(index: number, from: number, to: SlabMapping): void {
    this.#addon.moveReplica(this.handle, index, from, to)
  }

  /** Indexes of servers that have failed, in the order in which they did. */
  failedServers(): readonly number[] {
    return this.#addon.failedServers(this.handle)
  }

  /**
   * From now on requests for a slab whose live replicas have all failed wait, until each is {@link dropReplica dropped}
   * (then EIO) or {@link moveReplica moved}. Only one of them may be: the last of
   * {@link failedServers}, see docs/page-service/reconnect.md.
   */
  waitForServers(): void {
    this.#addon.setWaits(this.handle)
  }

  /**
   * The live replica of slab `index` at `server` is to be dropped: it is written to as before, and no WRITE that begins
   * from now on is answered because it has it. {@link synchronize}, then {@link dropRetired}.
   * @throws ENOENT: no live one is there; EBUSY: no other usable one is
   */
  retireReplica(index: number, server: number): void {
    this.#addon.retireReplica(this.handle, index, server)
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
    return this.#addon.dropReplica(this.handle, index, server, absent)
  }

  /**
   * Like {@link dropReplica}, of a replica that was retired. If its own server has failed since, it may be the last one
   * that has everything, so that it stays unless another one is usable: the failure decides.
   * @throws ENOENT: there is none; EBUSY: no other one is usable, and it is live again
   */
  dropRetired(index: number, server: number): DroppedReplica {
    return this.#addon.dropRetired(this.handle, index, server)
  }

  /**
   * Of a thin engine: a place for whichever slab is written first, with replicas on different servers. At most 64.
   * @throws EINVAL: mapping out of range; ENOSPC: 64 are there
   */
  addSpare(id: number, ...replicas: SlabMapping[]): void {
    this.#addon.addSpare(this.handle, id, replicas)
  }

  /** Takes a spare place back. @returns false when a lane has taken it, or is just looking at it */
  removeSpare(id: number): boolean {
    return this.#addon.removeSpare(this.handle, id)
  }

  /** @returns which slabs took which spare places since the last call; {@link addSpare} has room for others then */
  collectSpares(): readonly { readonly id: number; readonly slab: number }[] {
    return this.#addon.collectSpares(this.handle)
  }

  /**
   * There will be no spare place: first WRITEs are answered ENOSPC instead of waiting, until {@link addSpare}, or until
   * pages become unset. When some have since {@link takeCleared}, only those that waited at the last call, too, are.
   */
  setExhausted(): void {
    this.#addon.setExhausted(this.handle)
  }

  /** @returns slabs of which pages became unset since the last call, and which may be empty now */
  takeCleared(): readonly number[] {
    return this.#addon.takeCleared(this.handle)
  }

  /**
   * Takes the place from an empty slab, which is then as if it had never been written. Its memory may be used for
   * something else after {@link synchronize}.
   * @returns false when it is not empty, or has no place, or a replica of it is being filled
   */
  vacateSlab(index: number): boolean {
    return this.#addon.vacateSlab(this.handle, index)
  }

  /**
   * Fills the replica of slab `index` at `server` from a live one, or from the backup when none is left, while
   * lanes go on, and makes it live.
   * @throws EBUSY: another refill is under way; ENOTCONN: there is no refill lane; EIO: it failed, and why
   */
  async refill(index: number, server: number): Promise<void> {
    this.#addon.refill(this.handle, index, server)
    await this.events.outcome(['slabRefilled', 'refillFailed'], (event: RefillOutcome) =>
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
    const epoch = this.#addon.synchronize(this.handle)
    await this.events.outcome(
      ['synchronized'],
      (event: VolumeEvents['synchronized']) => event.epoch >= epoch,
      {
        milliseconds: this.#patience,
        failure: () =>
          Object.assign(new Error(`a lane has operations under way after ${this.#patience / 1000} s`), {
            code: 'ETIMEDOUT',
          }),
      },
    )
  }

  /**
   * Starts a native thread that serves one connection at a time.
   * @throws EINVAL: a handle of the wrong kind, an arena too small; ENOSPC: 64 lanes exist
   */
  addLane(resources: LaneResources): Lane {
    return this.#addon.addLane(this.handle, ...laneHandles(resources))
  }

  /**
   * Starts the thread that {@link refill} needs; one for the engine. Its index is for {@link connectServer}.
   * @throws EEXIST: there is one; EINVAL as addLane
   */
  addRefillLane(resources: LaneResources): Lane {
    return this.#addon.addRefillLane(this.handle, ...laneHandles(resources))
  }

  /**
   * Gives a running lane the queue pair of one more server. A server that failed comes back under another index, or
   * after {@link releaseServer}.
   * @throws EEXIST: the lane has a queue pair for it; EHOSTDOWN: that index has failed
   */
  connectServer(lane: number, server: number, queuePair: VerbsResource, memoryRegion?: VerbsResource): void {
    this.#addon.connectServer(this.handle, lane, server, queuePair.handle, memoryRegion?.handle)
  }

  /** The server is gone (heartbeat lost, disconnected): every lane answers EIO for its slabs. Idempotent. */
  failServer(server: number, reason = 'declared failed'): void {
    this.#addon.failServer(this.handle, server, reason)
  }

  /**
   * The index of a server that has failed is free for another one when this resolves: nothing of the old one is under
   * way, and no lane has its queue pair.
   * @throws ENOENT: it has not failed; EBUSY: a slab or a spare place names it, it is being refilled, or the index of
   *   another server is being released; ETIMEDOUT as {@link synchronize}
   */
  async releaseServer(server: number): Promise<void> {
    this.#addon.disconnectServer(this.handle, server)
    await this.synchronize()
    this.#addon.releaseServer(this.handle, server)
  }

  /**
   * Lets a lane's thread run on these processors only, by their numbers (sched_setaffinity(2)).
   * @throws EINVAL: no such lane, or it may run on none of them
   */
  pinLane(lane: number, processors: readonly number[]): void {
    this.#addon.pinLane(this.handle, lane, processors)
  }

  /**
   * How fast all lanes together may use a server, per second; 0: no limit. Requests beyond it wait their
   * turn. Limits below 1 MiB/s and 16 operations/s are raised to these. @throws EINVAL: no such server
   */
  setLimits(server: number, limits: { readonly bytes: number; readonly operations: number }): void {
    this.#addon.setLimits(this.handle, server, BigInt(limits.bytes), BigInt(limits.operations))
  }

  /** What the engine has moved to and from a server, refills too. Never falls. */
  usage(server: number): { readonly bytes: number; readonly operations: number } {
    return this.#addon.usage(this.handle, server)
  }

  /** Milliseconds since slab `index` was used last, within 134; if never: since the engine was made. */
  idle(index: number): number {
    return this.#addon.idle(this.handle, index)
  }

  /**
   * From now on the backup's file is this engine's: its header gets another generation, soon. Before, nothing that an
   * older process of the volume would refuse is written to it. Nothing without a backup.
   */
  stampBackup(): void {
    this.#addon.stampBackup(this.handle)
  }

  /** What the system did not grant for the backup, each a sentence to print. */
  get backupWarnings(): readonly string[] {
    return this.#addon.backupWarnings(this.handle)
  }

  /** Written pages of slab `index` that the backup neither has nor is about to have; 0 without a backup. */
  missingInBackup(index: number): number {
    return this.#addon.missingInBackup(this.handle, index)
  }

  /**
   * As {@link missingInBackup}, without pages of WRITEs that were open with `acknowledge: 'backup'` when the process
   * before this one ended, whose client repeats them. To be asked before anything is written.
   */
  lackingInBackup(index: number): number {
    return this.#addon.lackingInBackup(this.handle, index)
  }

  /** A snapshot; each counter is exact, the set of them is not taken at one instant. */
  statistics(): VolumeStatistics {
    return this.#addon.statistics(this.handle)
  }

  /** @returns a function that unsubscribes */
  on<Type extends keyof VolumeEvents>(type: Type, listener: (event: VolumeEvents[Type]) => void): () => void {
    return this.events.on(type, listener)
  }

  /**
   * Stops accepting, lets the lanes answer what is in flight (new requests get ESHUTDOWN) for up to
   * `timeout` milliseconds, ends what remains with EIO and joins the threads. Idempotent.
   * @throws ETIMEDOUT: a lane did not end, for its device gave the work requests back neither done nor
   *   flushed; its memory stays registered
   */
  close(timeout = 5000): Promise<void> {
    if (this.#closing === undefined) {
      this.#closing = this.#addon.close(this.handle, timeout).finally(() => this.events.end())
      this.events.close()
    }
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }
}
