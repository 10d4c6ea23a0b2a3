import { formatSize, SwapServerSession } from '@rdmakit/swap-server'
import { type Context, type ProtectionDomain, UsageError } from '@rdmakit/verbs'
import { type BackupOptions, pagesOfLane } from './backup.js'
import { BlockEngine, type BlockEngineOptions, type Lane } from './engine.js'
import { LaneEnds, type RunningLane } from './lane-ends.js'
import { fits, placeSlabs } from './placement.js'
import { Repair } from './repair.js'
import { type SlabState, SlabTable } from './slab-table.js'
import { VolumeServer } from './volume-server.js'

export interface VolumeOptions {
  /** one entry for each server: its URIs, tried in order until one answers */
  readonly servers: readonly (readonly string[])[]
  /** bytes, a multiple of 4096 */
  readonly size: number
  /** NBD connections that can be served at once, 1 … 64 */
  readonly lanes: number
  /** copies of each slab, on different servers: 1 (default) to 3 */
  readonly replicas?: number
  /** slabs allocated ahead on each server for the repair of others; default 1 with replicas, else 0 */
  readonly spares?: number
  /** a copy on this machine; default: none */
  readonly backup?: BackupOptions
  readonly engine?: Omit<BlockEngineOptions, 'size' | 'slabSize' | 'backup'>
  readonly signal?: AbortSignal
  /** told of each step on the way, for people */
  readonly progress?: (step: string) => void
}

/** What the failure of a server means for the volume. */
export interface ServerFailure {
  readonly server: VolumeServer
  readonly reason: string
  /** bytes that have a replica less and can still be read */
  readonly degraded: number
  /** bytes that no server has any more, and that are read from the backup */
  readonly backedUp: number
  /** bytes of which no copy is left */
  readonly lost: number
}

const PAGE = 4096
/** bytes */
const BACKUP_QUEUE = 16 * 2 ** 20
/** Milliseconds from one call to a server that has failed to the next. */
const RECALL_MS = 2_000
/** Server indexes of an engine. */
const MAX_SERVERS = 1024

/**
 * Remote memory as a block device: sessions with swap-servers, slabs placed on them, and the engine
 * that moves pages there. Everything that it opened, {@link close} closes.
 */
export class Volume {
  readonly engine: BlockEngine
  readonly size: number
  readonly replicas: number
  readonly #options: VolumeOptions
  readonly #servers: VolumeServer[]
  readonly #table: SlabTable
  readonly #repair: Repair
  readonly #lanes: RunningLane[] = []
  readonly #onBackupFailure = new Set<(reason: string) => void>()
  /** there is a backup, and it has not failed */
  #backedUp: boolean
  readonly #onFailure = new Set<(failure: ServerFailure) => void>()
  readonly #context: Context
  readonly #protectionDomain: ProtectionDomain
  readonly #progress: (step: string) => void
  readonly #ending = new AbortController()
  readonly #calls = new Set<Promise<void>>()
  /** all lanes are there */
  #open = false
  #closing: Promise<void> | undefined

  private constructor(servers: VolumeServer[], slabSize: number, options: VolumeOptions) {
    this.size = options.size
    this.replicas = options.replicas ?? 1
    this.#options = options
    this.#progress = options.progress ?? (() => {})
    this.#servers = servers
    this.#context = (servers[0] as VolumeServer).session.context
    this.#protectionDomain = this.#context.allocateProtectionDomain()
    const { backup } = options
    this.engine = new BlockEngine({
      ...options.engine,
      ...(backup === undefined
        ? {}
        : { backup: { ...backup, pages: pagesOfLane(backup.queue ?? BACKUP_QUEUE, options.lanes) } }),
      size: options.size,
      slabSize,
    })
    this.#backedUp = backup !== undefined
    for (const warning of this.engine.backupWarnings) this.#progress(`warning: ${warning}`)
    this.#table = new SlabTable(this.engine, this.replicas, () => this.#backedUp)
    this.#repair = new Repair({
      engine: this.engine,
      table: this.#table,
      servers,
      spares: options.spares ?? (this.replicas > 1 || this.#backedUp ? 1 : 0),
      repaired: (slabs) => this.#progress(`${formatSize(slabs * slabSize)} of the volume repaired`),
      failed: (reason) => this.#progress(`repair: ${reason}`),
    })
  }

  /**
   * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
   * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together, or
   *   hold too little; SwapServerError: a server refused
   */
  static async open(options: VolumeOptions): Promise<Volume> {
    const progress = options.progress ?? (() => {})
    const servers: VolumeServer[] = []
    let volume: Volume | undefined
    try {
      for (const uris of options.servers) {
        progress(`connecting to ${uris.join(' or ')}`)
        const session = await SwapServerSession.open(
          uris,
          options.signal === undefined ? {} : { signal: options.signal },
        )
        servers.push(new VolumeServer(servers.length, uris, session))
      }
      const slabSize = commonSlabSize(servers.map(({ session }) => session))
      checkRoom(servers, options, slabSize)
      const made = new Volume(servers, slabSize, options)
      volume = made
      await made.#placeSlabs(slabSize)
      for (const server of servers) made.#watch(server)
      made.engine.on('backupFailed', ({ reason }) => made.#loseBackup(reason))
      made.engine.on('serverFailed', ({ server, reason }) => made.#fail(server, reason))
      for (let i = 0; i < options.lanes; i++) await made.#addLane(false)
      if (made.replicas > 1 || options.backup !== undefined) await made.#addLane(true)
      made.#open = true
      made.#repair.wake()
      return made
    } catch (failure) {
      if (volume !== undefined) await volume.close()
      else await Promise.all(servers.map(({ session }) => session.close()))
      throw failure
    }
  }

  /** Every incarnation of every server, by index. */
  get servers(): readonly VolumeServer[] {
    return this.#servers
  }

  /** Lanes that serve connections. */
  get lanes(): readonly Lane[] {
    return this.#lanes.map(({ lane }) => lane).slice(0, this.#options.lanes)
  }

  /** How many slabs are in each state. */
  get slabs(): Readonly<Record<SlabState, number>> {
    return this.#table.count()
  }

  /** True when neither a server nor the backup is left: every request for a written page fails. */
  get lost(): boolean {
    return !this.#backedUp && this.#servers.every(({ failure }) => failure !== undefined)
  }

  /** Calls `listener` once for each server that is lost. */
  onServerFailure(listener: (failure: ServerFailure) => void): void {
    this.#onFailure.add(listener)
  }

  /** Calls `listener` when the backup has failed; the volume goes on without it. */
  onBackupFailure(listener: (reason: string) => void): void {
    this.#onBackupFailure.add(listener)
  }

  /** Answers what is in flight, ends the engine, then the sessions; the servers free the slabs. Idempotent. */
  close(timeout = 5_000): Promise<void> {
    this.#closing ??= (async () => {
      this.#onFailure.clear()
      this.#onBackupFailure.clear()
      this.#ending.abort(new Error('the volume was closed'))
      try {
        await this.engine.close(timeout)
        await this.#repair.close()
        await Promise.all(this.#calls)
      } finally {
        await Promise.all(this.#servers.map(({ session }) => session.close()))
        this.#protectionDomain.close()
      }
    })()
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  /** Spreads the slabs by the power of two choices. */
  async #placeSlabs(slabSize: number): Promise<void> {
    const places = placeSlabs(
      this.#servers.map(({ room }) => room),
      this.engine.slabCount,
      this.replicas,
    )
    for (const [slab, place] of places.entries()) {
      const servers = place.map((index) => this.#servers[index] as VolumeServer)
      this.#table.map(
        slab,
        await Promise.all(servers.map(async (server) => ({ server, remote: await server.take() }))),
      )
      // In steps, so that a large volume shows its progress.
      if ((slab + 1) % 8 === 0 || slab + 1 === places.length)
        this.#progress(
          `${formatSize((slab + 1) * slabSize)} of ${formatSize(places.length * slabSize)} allocated on ${this.#servers.map(({ session, slabs }) => `${session.uri}: ${slabs}`).join(', ')} slabs`,
        )
    }
  }

  #watch(server: VolumeServer): void {
    void server.session.lost.then((reason) => this.#fail(server.index, reason))
  }

  #fail(index: number, reason: string): void {
    const server = this.#servers[index]
    if (server === undefined || server.failure !== undefined || this.#closing !== undefined) return
    server.failure = reason
    this.engine.failServer(index, reason)
    const { degraded, lost } = this.#table.dropServer(server)
    const bytes = (slabs: number[]) => slabs.length * this.engine.slabSize
    const missing = lost.reduce((sum, slab) => sum + this.engine.missingInBackup(slab) * PAGE, 0)
    for (const listener of this.#onFailure)
      listener({
        server,
        reason,
        degraded: bytes(degraded),
        backedUp: this.#backedUp ? bytes(lost) - missing : 0,
        lost: this.#backedUp ? missing : bytes(lost),
      })
    this.#repair.wake()
    const call = this.#callBack(server).finally(() => this.#calls.delete(call))
    this.#calls.add(call)
  }

  #loseBackup(reason: string): void {
    if (this.#closing !== undefined) return
    this.#backedUp = false
    for (const listener of this.#onBackupFailure) listener(reason)
    this.#repair.wake()
  }

  /** Calls a server that failed until it answers: it joins with a new index and empty memory. */
  async #callBack(gone: VolumeServer): Promise<void> {
    const { signal } = this.#ending
    void gone.session.close().catch(() => {})
    while (await waited(RECALL_MS, signal)) {
      if (!this.#open) continue
      let session: SwapServerSession | undefined
      try {
        session = await SwapServerSession.open(gone.uris, { signal })
        if (session.slabSize !== this.engine.slabSize || session.context !== this.#context)
          throw new UsageError('it came back with another slab size or device')
        await this.#join(gone.uris, session)
        return
      } catch (failure) {
        await session?.close()
        if (signal.aborted) return
        if (failure instanceof UsageError)
          return this.#progress(`${gone.uris.join(' or ')}: ${failure.message}; it stays out`)
      }
    }
  }

  async #join(uris: readonly string[], session: SwapServerSession): Promise<void> {
    const index = this.#servers.length
    if (index >= MAX_SERVERS) throw new UsageError('too many failures of servers in one volume')
    // Before anything is awaited, so that the index is taken; without a slab it is nobody's replica.
    const server = new VolumeServer(index, uris, session)
    server.failure = 'it is joining'
    this.#servers.push(server)
    for (const { lane, ends } of this.#lanes)
      this.engine.connectServer(lane.index, index, await ends.connect(session))
    await this.engine.synchronize()
    server.failure = undefined
    this.#watch(server)
    this.#progress(`${session.uri} takes part again, with empty memory`)
    this.#repair.wake()
  }

  /** One NBD connection's verbs objects, or the refill lane's. */
  async #addLane(refills: boolean): Promise<void> {
    const ends = await LaneEnds.open(this.#context, this.#protectionDomain)
    const queuePairs = []
    for (const { session, failure } of this.#servers)
      queuePairs.push(failure === undefined ? await ends.connect(session) : null)
    const resources = ends.resources(queuePairs)
    const lane = refills ? this.engine.addRefillLane(resources) : this.engine.addLane(resources)
    this.#lanes.push({ lane, ends })
  }
}

/** @returns false when `signal` aborted */
function waited(ms: number, signal: AbortSignal): Promise<boolean> {
  if (signal.aborted) return Promise.resolve(false)
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve(!signal.aborted)
    }
    const timer = setTimeout(end, ms)
    timer.unref()
    signal.addEventListener('abort', end)
  })
}

function commonSlabSize(sessions: readonly SwapServerSession[]): number {
  const [first, ...others] = sessions
  if (first === undefined) throw new UsageError('a volume needs at least one --server')
  for (const other of others) {
    if (other.slabSize !== first.slabSize)
      throw new UsageError(
        `servers differ in slab size: ${first.uri} has ${formatSize(first.slabSize)}, ${other.uri} ${formatSize(other.slabSize)}; start them with the same --slab-size`,
      )
    if (other.context !== first.context)
      throw new UsageError(
        `servers are reached through different devices: ${first.uri} by ${first.context.deviceName}, ${other.uri} by ${other.context.deviceName}; use addresses of one device`,
      )
  }
  return first.slabSize
}

function checkRoom(servers: readonly VolumeServer[], options: VolumeOptions, slabSize: number): void {
  const { size, replicas = 1 } = options
  if (!Number.isInteger(replicas) || replicas < 1 || replicas > 3)
    throw new UsageError(`a slab has 1 to 3 replicas, not ${replicas}`)
  if (servers.length < replicas)
    throw new UsageError(
      `${replicas} replicas of each slab need ${replicas} servers and there are ${servers.length}; add a --server, or choose fewer --replicas`,
    )
  const epochs = new Set(servers.map(({ session }) => session.epoch))
  if (epochs.size < servers.length)
    throw new UsageError('two --server options lead to the same server; write its addresses with commas')
  const needed = Math.ceil(size / slabSize)
  const room = servers.map((server) => server.room)
  if (fits(room, needed, replicas)) return
  const free = room.reduce((sum, each) => sum + each, 0)
  const copies = replicas === 1 ? '' : ` in each of ${replicas} replicas on different servers`
  throw new UsageError(
    `server too small: ${servers.map(({ session }) => session.uri).join(', ')} can lend ${formatSize(free * slabSize)}, the volume needs ${formatSize(needed * slabSize)}${copies}; choose a smaller --size, start the server with more --memory, or add a --server`,
  )
}
