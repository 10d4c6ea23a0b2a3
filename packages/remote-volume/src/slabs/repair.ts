import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { fillReplica, type Place } from './fill-replica.js'
import { chooseAmong, chooseServer } from './placement.js'
import type { SerialQueue } from './serial-queue.js'
import type { SlabTable } from './slab-table.js'

/** A slab that finds no server now is tried again after this long; memory comes back without a word. */
const RETRY_MS = 2_000
/** First writes to a lost place end within the operation timeout. */
const BUSY_RETRY_MS = 20

export interface RepairOptions {
  readonly engine: VolumeEngine
  readonly table: SlabTable
  readonly servers: readonly VolumeServer[]
  readonly queue: SerialQueue
  /** slabs to have allocated ahead of use on each server */
  readonly spares: number
  /** told when all slabs have all their replicas again, with how many were given one */
  readonly repaired: (slabs: number) => void
  readonly failed: (reason: string) => void
}

/** Gives slabs new places after failures: lost ones an empty one, others a replica that it has filled. */
export class Repair {
  readonly #options: RepairOptions
  #running: Promise<void> | undefined
  #again = false
  #timer: NodeJS.Timeout | undefined
  #closed = false
  #given = 0

  constructor(options: RepairOptions) {
    this.#options = options
  }

  /** There may be something to do: a server failed, or a server joined. */
  wake(): void {
    if (this.#closed) return
    this.#again = true
    clearTimeout(this.#timer)
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined
      // It may have been woken while it filled the spares, when it looks at slabs no more.
      if (this.#again) this.wake()
    })
  }

  /** Ends it. Close the engine first, or this waits for outstanding work. */
  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#running
  }

  async #run(): Promise<void> {
    const { table, servers, spares } = this.#options
    while (this.#again && !this.#closed) {
      this.#again = false
      // Lost slabs first: they refuse writes, and giving them a place takes no copying.
      for (const slab of table.inState('lost')) await this.#attempt(() => this.#replaceLost(slab))
      for (const slab of table.inState('backup', 'degraded'))
        await this.#attempt(() => this.#addReplicas(slab))
    }
    if (this.#closed) return
    if (table.inState('lost', 'backup', 'degraded').length > 0) {
      this.#timer = setTimeout(() => this.wake(), RETRY_MS)
      this.#timer.unref()
      return
    }
    if (this.#given > 0) this.#options.repaired(this.#given)
    this.#given = 0
    for (const server of servers) await this.#attempt(() => server.fillSpares(spares))
  }

  /** A step that fails is one for the next round: its server has failed, or has no room after all. */
  async #attempt(step: () => Promise<void>): Promise<void> {
    if (this.#closed) return
    try {
      await this.#options.queue.run(step)
    } catch (failure) {
      if (!this.#closed) this.#options.failed((failure as Error).message)
    }
  }

  async #take(slab: number): Promise<Place | undefined> {
    const { table, servers } = this.#options
    const holders = table.holders(slab)
    const index = chooseAmong(servers, (room) => chooseServer(room, holders))
    const server = index === undefined ? undefined : servers[index]
    return server === undefined ? undefined : { server, remote: await server.take() }
  }

  async #replaceLost(slab: number): Promise<void> {
    const place = await this.#take(slab)
    if (place === undefined) return
    for (;;) {
      try {
        if (place.server.failure !== undefined || this.#closed) return
        this.#options.table.replaceLost(slab, place)
        break
      } catch (failure) {
        if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
        await new Promise((resolve) => setTimeout(resolve, BUSY_RETRY_MS))
      }
    }
    this.#given++
    await this.#addReplicas(slab)
  }

  async #addReplicas(slab: number): Promise<void> {
    const { engine, table } = this.#options
    const incomplete = () => {
      const state = table.state(slab)
      return state === 'degraded' || state === 'backup'
    }
    while (incomplete() && !this.#closed) {
      const place = await this.#take(slab)
      if (place === undefined) return
      const { server, remote } = place
      // While it was being allocated anything may have failed.
      if (server.failure !== undefined) continue
      if (!incomplete()) return await server.giveBack(remote)
      await fillReplica(engine, table, slab, place)
      this.#given++
    }
  }
}
