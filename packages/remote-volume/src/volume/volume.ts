import type { Lane } from '../engine/lane.js'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { FencedError } from '../servers/fenced-error.js'
import type { VolumeServer } from '../servers/volume-server.js'
import type { SlabState } from '../slabs/slab-table.js'
import { askWhetherFenced } from './ask-fenced.js'
import type { ServerFailure } from './volume-options.js'
import type { VolumeParts } from './volume-parts.js'

/** A subclass of {@link Volume}, which a package may have for its own front. */
export type VolumeClass<Engine extends VolumeEngine, Made extends Volume<Engine>> = new (
  parts: object,
) => Made

/**
 * Remote memory as an array of bytes: sessions with swap-servers, slabs placed on them, and the engine that moves pages
 * there. {@link openVolume} and {@link takeOverVolume} create it; {@link close} closes everything that it opened.
 *
 * It keeps the event loop alive until it is closed, unless {@link unref} was called: also while all its servers are away,
 * or with nothing left but its backup, and when another process has taken it over. Its {@link engine} alone, and who is
 * served by it, keep nothing alive.
 */
export class Volume<Engine extends VolumeEngine = VolumeEngine> {
  readonly engine: Engine
  readonly size: number
  readonly replicas: number
  readonly #parts: VolumeParts<Engine>
  readonly #state: VolumeParts<Engine>['state']
  #quiescing: Promise<void> | undefined
  #closing: Promise<void> | undefined

  /** @internal of what {@link openVolume} and {@link takeOverVolume} have made */
  constructor(parts: object) {
    this.#parts = parts as VolumeParts<Engine>
    const { state } = this.#parts
    this.#state = state
    this.engine = state.engine
    this.size = state.options.size
    this.replicas = state.replicas
  }

  /** After {@link takeOverVolume}, when the volume is in use again: repair begins, and servers that are gone are called. */
  start(): void {
    this.#parts.start()
    this.#parts.members.callBack()
  }

  /**
   * Requests that come before {@link start} wait for servers as they do after it. Call it before the kernel gets lanes,
   * which it must have before the volume is started.
   */
  expectRequests(): void {
    this.#parts.members.waitForServers()
  }

  get migration() {
    return this.#parts.slabs.migration
  }

  /** undefined: not thin */
  get thin() {
    return this.#parts.slabs.thin
  }

  /** Every incarnation of every server that is still referenced, by index; `isVacant` for the others. */
  get servers(): readonly VolumeServer[] {
    return this.#state.servers
  }

  /** Lanes that serve connections. */
  get lanes(): readonly Lane[] {
    return this.#parts.lanes.running.map(({ lane }) => lane).slice(0, this.#state.options.lanes)
  }

  /** How many slabs are in each state. */
  get slabs(): Readonly<Record<SlabState, number>> {
    return this.#parts.slabs.table.count()
  }

  /** slabs without a place, because nothing was written to them */
  get unmapped(): number {
    return this.#parts.slabs.table.unmapped
  }

  /**
   * True when neither a server nor the backup is left: every request for a written page fails. A thin volume in which no
   * slab has a place has lost nothing, and goes on when a server is back.
   */
  get lost(): boolean {
    return (
      !this.#state.backedUp &&
      this.unmapped < this.engine.slabCount &&
      this.#state.servers.every(({ failure, away }) => failure !== undefined && !away)
    )
  }

  /** Calls `listener` for each lost server, and a second time when the wait for one is given up. */
  onServerFailure(listener: (failure: ServerFailure) => void): void {
    this.#state.onFailure.add(listener)
  }

  /** Set when another process has taken the volume over, so that this one must stop; undefined as long as that is unknown. */
  get fenced(): FencedError | undefined {
    return this.#state.fenced
  }

  /**
   * Calls `listener` when another process has taken the volume over, at once if it has. From then on nothing is called, repaired or written
   * down any more, and {@link close} leaves the sessions.
   */
  onFenced(listener: (failure: FencedError) => void): void {
    this.#state.onFenced.add(listener)
    if (this.#state.fenced !== undefined) listener(this.#state.fenced)
  }

  /** Asks the failed servers whether another process has the volume; call it before ending any part of the volume. */
  async askFenced(): Promise<FencedError | undefined> {
    if (this.#state.fenced === undefined) {
      const { servers, options } = this.#state
      const found = await askWhetherFenced(
        servers.filter(({ failure }) => failure !== undefined),
        options,
      )
      if (found !== undefined) this.#parts.fence(found)
    }
    return this.#state.fenced
  }

  /** Calls `listener` when the backup has failed; the volume continues without it. */
  onBackupFailure(listener: (reason: string) => void): void {
    this.#state.onBackupFailure.add(listener)
  }

  /** Keeps the event loop alive until the volume is closed (the default): undoes {@link unref}. */
  ref(): this {
    this.#state.hold.referenced = true
    return this
  }

  /**
   * The volume no longer keeps the program alive: if nothing else does, the program exits without closing it. A call to a
   * server that is gone still does, and {@link close}, {@link leave} and {@link quiesce}.
   */
  unref(): this {
    this.#state.hold.referenced = false
    return this
  }

  /** Answers what is in flight, ends the engine, then the sessions; the servers free the slabs. Idempotent. */
  close(timeout = 5_000): Promise<void> {
    this.#closing ??= this.#state.hold.during(this.#close(timeout).finally(() => this.#state.hold.end()))
    return this.#closing
  }

  async #close(timeout: number): Promise<void> {
    try {
      await this.quiesce(timeout)
    } finally {
      const reached = this.#state.servers.filter((server) => server.reached)
      await Promise.all(
        reached.map(({ session }) => (this.#state.leaving ? session.leave() : session.close())),
      )
      this.#parts.lanes.close()
    }
  }

  /**
   * The first part of {@link close}: no pages move any more, and another engine may open the maps. The sessions stay, to be
   * resumed. Idempotent.
   */
  quiesce(timeout = 5_000): Promise<void> {
    this.#quiescing ??= this.#state.hold.during(this.#parts.quiesce(timeout))
    return this.#quiescing
  }

  /** Like {@link close}, but the sessions stay at the servers to linger, for {@link takeOverVolume}. */
  leave(timeout?: number): Promise<void> {
    this.#state.leaving = true
    return this.close(timeout)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }
}
