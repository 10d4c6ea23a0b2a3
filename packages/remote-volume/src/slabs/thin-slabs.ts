import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'
import type { Place } from './fill-replica.js'
import { chooseAmong, drawPlace } from './placement.js'
import type { SerialQueue } from './serial-queue.js'
import { mapping, type SlabTable } from './slab-table.js'

/** Places to have ahead of the first WRITEs to slabs: as many as a fast writer fills while one is allocated. */
const SPARE_PLACES = 8
/** Memory comes back to servers without a word. */
const RETRY_MS = 1_000
/**
 * A client that discards usually continues, so empty slabs are searched for some time after the first page
 * became unset.
 */
const LOOK_MS = 200
/** How long a WRITE waits for slabs that were discarded: a refill may have the turn, and a server may be slow. */
const PATIENCE_MS = 500

export interface ThinSlabsOptions {
  readonly engine: VolumeEngine
  readonly table: SlabTable
  readonly servers: readonly VolumeServer[]
  readonly queue: SerialQueue
  /** servers that are gone may come back with memory, so a lack of it is not certain */
  readonly waits: () => boolean
  /** a slab may have less replicas than it should */
  readonly degraded: () => void
  /** first WRITEs fail, for the servers have no memory left; or they do not any more */
  readonly exhausted: (exhausted: boolean) => void
  readonly failed: (reason: string) => void
}

/**
 * Slabs of a thin volume, which get their places from the engine when they are first written: keeps places ready for
 * that, hears which ones were used, and takes the memory of slabs that have become empty.
 */
export class ThinSlabs {
  readonly #options: ThinSlabsOptions
  /** by id; what lanes have taken is among them until {@link collect} */
  readonly #spares = new Map<number, readonly Place[]>()
  /** slabs that may be empty */
  readonly #cleared = new Set<number>()
  #lastId = 0
  #given = 0
  /** slabs that are on their way back to their servers */
  #returning = 0
  #givenBack: Promise<unknown> = Promise.resolve()
  #exhausted = false
  #running: Promise<void> | undefined
  /** asked for, and its turn may be to come */
  #vacating: Promise<void> | undefined
  #again = false
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: ThinSlabsOptions) {
    this.#options = options
    options.engine.on('slabsChanged', () => this.wake())
  }

  /** places that are ready */
  get spares(): number {
    return this.#spares.size
  }

  /** slabs that gave their memory back since the start */
  get given(): number {
    return this.#given
  }

  /** Brings the table up to date: call it before anything is decided from it. */
  collect(): void {
    const { engine, table, degraded } = this.#options
    for (const { id, slab } of engine.collectSpares()) {
      const places = this.#spares.get(id)
      this.#spares.delete(id)
      const replicas = (places ?? []).map((place) => ({ ...place, live: true }))
      table.adopt(slab, replicas)
      // Servers may have failed since the lane looked.
      if (table.dropFailed(slab, engine.failedServers())) degraded()
    }
  }

  /** There may be something to do: a server has failed, or joined. */
  wake(): void {
    if (this.#closed) return
    this.collect()
    for (const slab of this.#options.engine.takeCleared()) this.#cleared.add(slab)
    if (this.#cleared.size > 0) this.#later(LOOK_MS)
    this.#again = true
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined
      if (this.#again) this.wake()
    })
  }

  /** After a take-over, before the first {@link wake}: which slabs have been discarded is not on record. */
  lookAtAll(): void {
    for (let slab = 0; slab < this.#options.engine.slabCount; slab++)
      if (this.#options.table.state(slab) !== undefined) this.#cleared.add(slab)
  }

  /** Slab `id` of `server` is part of a spare place. */
  has(server: VolumeServer, id: number): boolean {
    return this.#find(server, id) !== undefined
  }

  /** Gives up the spare place of which slab `id` of `server` is part. @returns false when there is none any more */
  release(server: VolumeServer, id: number): boolean {
    const spare = this.#find(server, id)
    if (spare === undefined || !this.#options.engine.removeSpare(spare)) return false
    this.#giveBack(spare)
    return true
  }

  /** Ends it, when no request to a server is under way any more. The engine must be closed, or that takes longer. */
  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#running
    await this.#vacating
    await this.#givenBack
  }

  #find(server: VolumeServer, id: number): number | undefined {
    for (const [spare, places] of this.#spares)
      if (places.some((place) => place.server === server && place.remote.id === id)) return spare
    return undefined
  }

  #later(ms: number): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined
      if (this.#closed) return
      this.wake()
      void this.#vacateInTurn()
    }, ms)
    this.#timer.unref()
  }

  #tell(failure: Error): void {
    if (!this.#closed) this.#options.failed(failure.message)
  }

  async #run(): Promise<void> {
    while (this.#again && !this.#closed) {
      this.#again = false
      try {
        this.#dropFailed()
        await this.#fill()
      } catch (failure) {
        // A server has failed, or had no room after all.
        this.#tell(failure as Error)
        this.#later(RETRY_MS)
      }
    }
  }

  /** Lanes take no place at a server that has failed. */
  #dropFailed(): void {
    for (const [spare, places] of this.#spares) {
      if (places.every(({ server }) => server.failure === undefined)) continue
      if (this.#options.engine.removeSpare(spare)) this.#giveBack(spare)
      else this.#later(RETRY_MS) // a lane looks at it
    }
  }

  #giveBack(spare: number): void {
    const places = this.#spares.get(spare) ?? []
    this.#spares.delete(spare)
    const gone = places.map(({ server, remote }) =>
      server.giveBack(remote).catch((failure: Error) => this.#tell(failure)),
    )
    this.#givenBack = Promise.all([this.#givenBack, ...gone])
  }

  async #fill(): Promise<void> {
    const { engine, table, servers } = this.#options
    let patience: number | undefined
    while (!this.#closed) {
      this.collect()
      if (this.#spares.size >= Math.min(SPARE_PLACES, table.unmapped)) break
      const chosen = chooseAmong(servers, (room) => drawPlace(room, table.replicas))
      if (chosen === undefined) {
        patience ??= performance.now() + PATIENCE_MS
        if (this.#spares.size === 0 && (await this.#hasDiscarded(patience))) continue
        if (!this.#closed) this.#noRoom()
        return
      }
      patience = undefined
      const places: Place[] = []
      const giveBack = async () => {
        for (const { server, remote } of places) await server.giveBack(remote)
      }
      const spare = ++this.#lastId
      try {
        for (const index of chosen) {
          const server = servers[index] as VolumeServer
          places.push({ server, remote: await server.take() })
        }
        // One may have failed while another was asked, and its index be that of another server by now.
        if (places.some(({ server }) => server.failure !== undefined)) {
          await giveBack()
          continue
        }
        this.#spares.set(spare, places)
        engine.addSpare(spare, ...places.map(mapping))
      } catch (failure) {
        this.#spares.delete(spare)
        await giveBack()
        throw failure
      }
    }
    if (!this.#closed) this.#setExhausted(false)
  }

  /**
   * Discarded memory is recovered before a WRITE fails for lack of memory.
   *
   * @param until end of the last wait, of performance.now()
   * @returns whether some was recovered, or is about to be
   */
  async #hasDiscarded(until: number): Promise<boolean> {
    for (const slab of this.#options.engine.takeCleared()) this.#cleared.add(slab)
    if (this.#vacating === undefined && this.#cleared.size === 0) return false
    const underWay = this.#vacating !== undefined
    const given = this.#given
    let timer: NodeJS.Timeout | undefined
    const patience = new Promise<boolean>((resolve) => {
      timer = setTimeout(resolve, Math.max(0, until - performance.now()), false)
    })
    const over = await Promise.race([this.#vacateInTurn().then(() => underWay), patience])
    clearTimeout(timer)
    return over || this.#given > given || (this.#returning > 0 && performance.now() < until)
  }

  #noRoom(): void {
    if (this.#spares.size === 0 && !this.#options.waits()) {
      this.#options.engine.setExhausted()
      this.#setExhausted(true)
    }
    this.#later(RETRY_MS)
  }

  #setExhausted(exhausted: boolean): void {
    if (this.#exhausted !== exhausted) this.#options.exhausted(exhausted)
    this.#exhausted = exhausted
  }

  /** Joins one that is under way. */
  #vacateInTurn(): Promise<void> {
    this.#vacating ??= this.#options.queue
      .run(() => this.#vacate())
      .catch((failure: Error) => this.#tell(failure))
      .finally(() => {
        this.#vacating = undefined
        // Slabs that lack a replica, and those that were cleared since the last look.
        if (this.#cleared.size > 0 && !this.#closed) this.#later(RETRY_MS)
      })
    return this.#vacating
  }

  /** Takes the memory of slabs that are empty; those that lack a replica are looked at again until they have it. */
  async #vacate(): Promise<void> {
    const { engine, table } = this.#options
    if (this.#closed) return
    this.collect()
    const going: Place[] = []
    for (const slab of this.#cleared) {
      const state = table.state(slab)
      if (state === 'degraded' || state === 'refilling' || state === 'away' || state === 'lost') continue
      this.#cleared.delete(slab)
      if (state === 'mapped' && engine.vacateSlab(slab)) {
        going.push(...table.vacate(slab))
        this.#given++
      }
    }
    if (going.length === 0) return
    this.#returning += going.length
    try {
      // Until then operations may be under way there.
      await engine.synchronize()
      const back = await Promise.allSettled(going.map(({ server, remote }) => server.giveBack(remote)))
      for (const each of back) if (each.status === 'rejected') this.#tell(each.reason as Error)
    } finally {
      this.#returning -= going.length
    }
    this.wake()
  }
}
