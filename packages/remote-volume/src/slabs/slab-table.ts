import type { RemoteSlab } from '@rdmakit/swap-server'
import type { DroppedReplica, VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'

/** A copy of a slab, or one that becomes it. */
export interface SlabReplica {
  readonly server: VolumeServer
  readonly remote: RemoteSlab
  /** it holds every written page, and WRITEs are answered because it has them; else it is being filled, or `leaving` */
  live: boolean
  /** it holds every written page, and is about to be dropped */
  leaving?: boolean
}

/** Per slab, in the engine's record. */
export const MAX_REPLICAS = 3

/**
 * `away`: the only replica is at a server that may come back, and requests wait. `backup`: no replica is left, and it is
 * read from and written to the local backup. `lost`: no copy is left; its written pages answer EIO until they are
 * written anew.
 */
export type SlabState = 'mapped' | 'degraded' | 'refilling' | 'away' | 'backup' | 'lost'

const UNMAPPED: SlabReplica[] = []

/** The server of each slab, as the engine was told, so that control can decide on its next command. */
export class SlabTable {
  readonly replicas: number
  readonly #engine: VolumeEngine
  readonly #backedUp: () => boolean
  /** those that have a place, or have lost it; of a thin volume these may be few */
  readonly #slabs = new Map<number, SlabReplica[]>()

  /** @param backedUp whether there is a local backup that works */
  constructor(engine: VolumeEngine, replicas: number, backedUp: () => boolean = () => false) {
    this.replicas = replicas
    this.#backedUp = backedUp
    this.#engine = engine
  }

  /** @returns how many slabs are in each state */
  count(): Record<SlabState, number> {
    const counts = { mapped: 0, degraded: 0, refilling: 0, away: 0, backup: 0, lost: 0 }
    for (const all of this.#slabs.values()) counts[this.#stateOf(all)]++
    return counts
  }

  /** @returns undefined: it has no place, for nothing was written to it */
  state(slab: number): SlabState | undefined {
    const all = this.#slabs.get(slab)
    return all && this.#stateOf(all)
  }

  /** slabs that have no place, for nothing was written to them */
  get unmapped(): number {
    return this.#engine.slabCount - this.#slabs.size
  }

  #stateOf(all: readonly SlabReplica[]): SlabState {
    const readable = all.filter((replica) => replica.live)
    const live = readable.length
    if (live > 0 && readable.every(({ server }) => server.away)) return 'away'
    if (live === 0) {
      if (!this.#backedUp()) return 'lost'
      return all.length > 0 ? 'refilling' : 'backup'
    }
    if (live >= this.replicas) return 'mapped'
    return all.length > live ? 'refilling' : 'degraded'
  }

  /** Slabs in one of `states`, ascending. */
  inState(...states: SlabState[]): number[] {
    return [...this.#slabs]
      .filter(([, all]) => states.includes(this.#stateOf(all)))
      .map(([slab]) => slab)
      .sort((a, b) => a - b)
  }

  /** Server indexes that hold a replica of `slab`. */
  holders(slab: number): Set<number> {
    return new Set(this.#of(slab).map(({ server }) => server.index))
  }

  /** The slabs held by a server, by their id there. */
  heldBy(server: VolumeServer): Map<number, { slab: number; replica: SlabReplica }> {
    const held = new Map<number, { slab: number; replica: SlabReplica }>()
    for (const [slab, replicas] of this.#slabs)
      for (const replica of replicas)
        if (replica.server === server) held.set(replica.remote.id, { slab, replica })
    return held
  }

  /** The replica of a slab that has this id at the server. */
  replicaAt(slab: number, server: VolumeServer, id: number): SlabReplica | undefined {
    return this.#slabs.get(slab)?.find((replica) => replica.server === server && replica.remote.id === id)
  }

  /** The first places of a slab, all of them live. */
  map(slab: number, places: readonly Omit<SlabReplica, 'live'>[]): void {
    this.#engine.mapSlab(slab, ...places.map(mapping))
    this.#slabs.set(
      slab,
      places.map((place) => ({ ...place, live: true })),
    )
  }

  /**
   * Adopts records that the engine has already: an earlier process left them, or a lane took a spare place.
   */
  adopt(slab: number, replicas: readonly SlabReplica[]): void {
    this.#slabs.set(slab, [...replicas])
  }

  /** The engine has taken the place of an empty slab. @returns its replicas */
  vacate(slab: number): readonly SlabReplica[] {
    const replicas = this.#of(slab)
    this.#slabs.delete(slab)
    return replicas
  }

  /** An empty place for a slab that is lost. @throws EBUSY: call again in a moment */
  replaceLost(slab: number, place: Omit<SlabReplica, 'live'>): void {
    this.#engine.replaceSlab(slab, mapping(place), 'lost')
    this.#slabs.set(slab, [{ ...place, live: true }])
  }

  /** One more replica, to be filled. */
  add(slab: number, place: Omit<SlabReplica, 'live'>): SlabReplica {
    this.#engine.addReplica(slab, mapping(place))
    const replica = { ...place, live: false }
    this.#of(slab).push(replica)
    return replica
  }

  /**
   * A live replica is to be dropped, see {@link VolumeEngine.retireReplica}.
   * @returns false: it is gone, or it stays, for no other one is usable
   */
  retire(slab: number, replica: SlabReplica): boolean {
    return (
      this.#of(slab).includes(replica) &&
      this.#act(slab, () => this.#engine.retireReplica(slab, replica.server.index))
    )
  }

  /**
   * Drops a replica whose server has failed, or which is being filled.
   * @returns undefined: it is gone already, or it stays, for it has become the last usable one
   */
  drop(slab: number, replica: SlabReplica): DroppedReplica | undefined {
    return this.#drop(slab, replica, () => this.#engine.dropReplica(slab, replica.server.index))
  }

  /** Drops one that was retired, see {@link VolumeEngine.dropRetired}. @returns as {@link drop} */
  dropRetired(slab: number, replica: SlabReplica): DroppedReplica | undefined {
    return this.#drop(slab, replica, () => this.#engine.dropRetired(slab, replica.server.index))
  }

  #drop(slab: number, replica: SlabReplica, drop: () => DroppedReplica): DroppedReplica | undefined {
    const all = this.#of(slab)
    if (!all.includes(replica)) return undefined
    let dropped: DroppedReplica | undefined
    this.#act(slab, () => {
      dropped = drop()
      all.splice(all.indexOf(replica), 1)
    })
    return dropped
  }

  /** Changes the engine's record, which the engine may refuse, and then this table. @returns false: it refused */
  #act(slab: number, act: () => void): boolean {
    let done = true
    try {
      act()
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
      done = false
    }
    const recorded = this.#engine.lookUpSlab(slab) ?? []
    for (const replica of this.#of(slab)) {
      const found = recorded.find(({ server }) => server === replica.server.index)
      replica.live = found?.live === true
      replica.leaving = found?.leaving === true
    }
    return done
  }

  /**
   * Drops the replicas of a server that failed.
   * @param failed all that have failed, in order: slabs of which `server` is the last to have a replica keep it, for it
   *   has all that was answered (docs/page-service/reconnect.md); undefined: none keeps it
   * @returns the slabs that had one: those that have others, none, or keep it
   */
  dropServer(
    server: VolumeServer,
    failed?: readonly number[],
  ): { degraded: number[]; lost: number[]; kept: number[] } {
    const degraded: number[] = []
    const lost: number[] = []
    const kept: number[] = []
    for (const [slab, replicas] of this.#slabs) {
      const replica = replicas.find((each) => each.server === server)
      if (replica === undefined) continue
      if (failed !== undefined && this.#isLast(slab, server.index, failed)) {
        kept.push(slab)
        continue
      }
      // The engine knows the loss already: it makes a replica live before its event arrives here.
      const dropped = this.drop(slab, replica)
      if (dropped === undefined || dropped.liveLeft > 0) degraded.push(slab)
      else if (dropped.wasLive) lost.push(slab)
    }
    return { degraded, lost, kept }
  }

  /**
   * Drops what servers that have failed had of one slab, each as {@link dropServer} would have: it was not known of this
   * slab yet when they failed.
   * @param failed all that have failed, in order
   * @returns whether there was such a replica
   */
  dropFailed(slab: number, failed: readonly number[]): boolean {
    const gone = this.#of(slab).filter(({ server }) => server.failure !== undefined)
    for (const replica of gone)
      if (!replica.server.away || !this.#isLast(slab, replica.server.index, failed)) this.drop(slab, replica)
    return gone.length > 0
  }

  /** All complete replicas of the slab, as the engine has them, are at servers that have failed, and `server` was the last. */
  #isLast(slab: number, server: number, failed: readonly number[]): boolean {
    const last = failed.indexOf(server)
    const complete = (this.#engine.lookUpSlab(slab) ?? []).filter(({ live, leaving }) => live || leaving)
    return (
      complete.some((replica) => replica.server === server) &&
      complete.every((replica) => failed.includes(replica.server) && failed.indexOf(replica.server) <= last)
    )
  }

  /**
   * A server has come back under another index, with `slabs`: replicas that were kept are there now.
   * @returns the slabs that go on, and what of `slabs` nothing uses
   */
  moveServer(
    from: VolumeServer,
    to: VolumeServer,
    slabs: readonly RemoteSlab[],
  ): { moved: number[]; rest: RemoteSlab[] } {
    const there = new Map(slabs.map((slab) => [placeOf(slab), slab]))
    const moved: number[] = []
    for (const [slab, replicas] of this.#slabs) {
      const at = replicas.findIndex(({ server }) => server === from)
      const remote = at < 0 ? undefined : there.get(placeOf((replicas[at] as SlabReplica).remote))
      if (remote === undefined) continue
      const place = { server: to, remote }
      try {
        this.#engine.moveReplica(slab, from.index, mapping(place))
      } catch (failure) {
        // Another replica has the WRITEs that it missed, or it was being filled: it does not come back for this slab.
        if (!['ESTALE', 'ENOENT'].includes((failure as NodeJS.ErrnoException).code ?? '')) throw failure
        this.drop(slab, replicas[at] as SlabReplica)
        continue
      }
      replicas[at] = { ...place, live: true }
      there.delete(placeOf(remote))
      to.slabs++
      moved.push(slab)
    }
    return { moved, rest: [...there.values()] }
  }

  #of(slab: number): SlabReplica[] {
    return this.#slabs.get(slab) ?? UNMAPPED
  }
}

/** Identifies a slab at its server, for any client. */
export function placeOf({ remoteKey, address }: Pick<RemoteSlab, 'remoteKey' | 'address'>): string {
  return `${remoteKey}:${address}`
}

/** A place as the engine is told it. */
export function mapping({ server, remote }: Pick<SlabReplica, 'server' | 'remote'>) {
  return { server: server.index, remoteKey: remote.remoteKey, address: remote.address }
}
