import type { ServerRequestHandler } from '@rdmakit/swap-server'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { fillReplica } from './fill-replica.js'
import { chooseAmong, chooseServer } from './placement.js'
import type { SerialQueue } from './serial-queue.js'
import { MAX_REPLICAS, type SlabReplica, type SlabTable } from './slab-table.js'
import type { ThinSlabs } from './thin-slabs.js'

/** A slab that finds no room now is tried again after this long, */
const RETRY_MS = 1_000
/** and no longer than this; then the server asks again. */
const REQUEST_STANDS_MS = 60_000
/** The idle time of an empty slab: the first to go. */
const NEVER_MS = 2 ** 40

export interface MigrationOptions {
  readonly engine: VolumeEngine
  readonly table: SlabTable
  readonly servers: readonly VolumeServer[]
  readonly queue: SerialQueue
  /** of a thin volume */
  readonly thin: ThinSlabs | undefined
  /** slabs have a replica less than they should */
  readonly degraded: () => void
  /** told of each step on the way, for people; `slabs` are to go */
  readonly moving: (server: VolumeServer, slabs: number) => void
  readonly moved: (server: VolumeServer, slabs: number) => void
  /** they stay where they are, for there is no room on other servers */
  readonly stuck: (server: VolumeServer, slabs: number) => void
  readonly failed: (reason: string) => void
}

interface Wish {
  readonly server: VolumeServer
  /** of the slab at the server */
  readonly id: number
  /** that it had when the server asked last */
  slab: number
  expires: number
}

/** Moves slabs to other servers while I/O continues, when a server asks for its memory back. */
export class Migration {
  readonly #options: MigrationOptions
  /** by {@link key} */
  readonly #wishes = new Map<string, Wish>()
  /** how many of them each server has */
  readonly #asked = new Map<VolumeServer, number>()
  /** by server, slabs moved since it began to ask */
  readonly #done = new Map<VolumeServer, number>()
  #moved = 0
  #running: Promise<void> | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: MigrationOptions) {
    this.#options = options
  }

  /** slabs that servers want back and that are still there */
  get waiting(): number {
    return this.#wishes.size
  }

  /** slabs that went to another server since the start */
  get moved(): number {
    return this.#moved
  }

  /** Answers what `server` asks. */
  handler(server: VolumeServer): ServerRequestHandler {
    return {
      activity: (ids) => this.#activity(server, ids),
      reclaim: (ids) => this.#reclaim(server, ids),
    }
  }

  /** Ends it. Close the engine first, or this waits for outstanding work. */
  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#running
  }

  #activity(server: VolumeServer, ids: readonly number[]): number[] {
    const { engine, table, thin } = this.#options
    thin?.collect()
    const held = table.heldBy(server)
    return ids.map((id) => {
      const slab = held.get(id)?.slab
      if (slab !== undefined) return engine.idle(slab)
      return server.hasSpare(id) || thin?.has(server, id) ? NEVER_MS : 0
    })
  }

  #reclaim(server: VolumeServer, ids: readonly number[]): number[] {
    if (this.#closed) return []
    const { thin } = this.#options
    thin?.collect()
    const held = this.#options.table.heldBy(server)
    const expires = performance.now() + REQUEST_STANDS_MS
    const accepted: number[] = []
    const spares: number[] = []
    let added = 0
    for (const id of ids) {
      const slab = held.get(id)?.slab
      const known = this.#wishes.get(key(server, id))
      if (server.hasSpare(id)) {
        spares.push(id)
      } else if (thin?.has(server, id)) {
        if (!thin.release(server, id)) continue
      } else if (known !== undefined) {
        known.expires = expires
        known.slab = slab ?? known.slab
      } else if (slab !== undefined && this.#roomFor(slab, server) > this.#wishes.size) {
        this.#wishes.set(key(server, id), { server, id, slab, expires })
        this.#count(server, 1)
        added++
      } else {
        continue
      }
      accepted.push(id)
    }
    if (spares.length > 0)
      server.giveSparesBack(spares).catch((failure: Error) => this.#options.failed(failure.message))
    if (added > 0) {
      this.#options.moving(server, added)
      this.#wake()
    }
    return accepted
  }

  /** Slabs that could go where `slab` could. */
  #roomFor(slab: number, from: VolumeServer): number {
    const holders = this.#options.table.holders(slab)
    return this.#options.servers
      .filter((server) => server !== from && !holders.has(server.index) && !this.#wants(server))
      .reduce((sum, { room }) => sum + room, 0)
  }

  /** It asks for memory itself. */
  #wants(server: VolumeServer): boolean {
    return this.#asked.has(server)
  }

  #count(server: VolumeServer, more: number): void {
    const count = (this.#asked.get(server) ?? 0) + more
    if (count > 0) this.#asked.set(server, count)
    else this.#asked.delete(server)
  }

  #over({ server, id }: Wish): void {
    this.#wishes.delete(key(server, id))
    this.#count(server, -1)
  }

  #wake(): void {
    if (this.#closed) return
    clearTimeout(this.#timer)
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined
      if (this.#wishes.size === 0 || this.#closed) return
      this.#timer = setTimeout(() => this.#wake(), RETRY_MS)
      this.#timer.unref()
    })
  }

  /** Goes through the wishes once, those that come meanwhile too. */
  async #run(): Promise<void> {
    for (const wish of this.#wishes.values()) {
      if (this.#closed) return
      try {
        const gone = await this.#options.queue.run(() => this.#move(wish))
        if (!gone) continue
        this.#done.set(wish.server, (this.#done.get(wish.server) ?? 0) + 1)
        this.#moved++
      } catch (failure) {
        // Its new server has failed, or had no room after all: another round, another place.
        if (!this.#closed) this.#options.failed((failure as Error).message)
        continue
      }
      this.#over(wish)
    }
    this.#tell()
  }

  #tell(): void {
    const now = performance.now()
    const stuck = new Map<VolumeServer, number>()
    const held = new Map([...this.#asked.keys()].map((each) => [each, this.#options.table.heldBy(each)]))
    for (const wish of this.#wishes.values()) {
      const { server, id, expires } = wish
      const there = server.failure === undefined && held.get(server)?.has(id) === true
      if (there && expires > now) continue
      this.#over(wish)
      if (there) stuck.set(server, (stuck.get(server) ?? 0) + 1)
    }
    for (const [server, slabs] of stuck) this.#options.stuck(server, slabs)
    for (const [server, slabs] of this.#done) {
      if (this.#wants(server)) continue
      this.#done.delete(server)
      this.#options.moved(server, slabs)
    }
  }

  /** @returns false when it cannot be moved now */
  async #move({ server, id, slab }: Wish): Promise<boolean> {
    const { engine, table, servers, degraded } = this.#options
    const replica = table.replicaAt(slab, server, id)
    // A try before this one came no further.
    if (replica?.leaving && !this.#closed) return await this.#giveUp(slab, replica)
    // A slab that lacks a replica is repaired first; one that is being filled is not worth a copy yet.
    if (this.#closed || !replica?.live || table.state(slab) !== 'mapped') return false
    if (table.holders(slab).size === MAX_REPLICAS) {
      // There is no room for a fourth in its record. Two are left, and the third is repaired.
      const gone = await this.#giveUp(slab, replica)
      degraded()
      return gone
    }
    const excluded = table.holders(slab)
    for (const each of servers) if (this.#wants(each)) excluded.add(each.index)
    const target = servers[chooseAmong(servers, (room) => chooseServer(room, excluded)) ?? -1]
    if (target === undefined) return false
    const place = { server: target, remote: await target.take() }
    // While it was being allocated anything may have failed.
    if (target.failure !== undefined) return false
    if (table.replicaAt(slab, server, id) !== replica || this.#closed) {
      await target.giveBack(place.remote)
      return false
    }
    await fillReplica(engine, table, slab, place)
    const gone = await this.#giveUp(slab, replica)
    if (!gone) degraded()
    return gone
  }

  /** @returns false when it stays: the others have failed meanwhile, whether control knows it yet or not */
  async #giveUp(slab: number, replica: SlabReplica): Promise<boolean> {
    const { engine, table } = this.#options
    const { server, remote } = replica
    const holds = () => table.replicaAt(slab, server, remote.id) === replica
    // Its own server may fail at any time: then it is dropped already.
    if (!replica.leaving && !table.retire(slab, replica)) return !holds()
    // WRITEs that began before are over then, and were not answered because this one has them unless another failed.
    await engine.synchronize()
    // Its server may have failed meanwhile, and be waited for.
    if (table.dropRetired(slab, replica) === undefined) return !holds()
    await engine.synchronize()
    await server.giveBack(remote)
    return true
  }
}

function key(server: VolumeServer, id: number): string {
  return `${server.incarnation}:${id}`
}
