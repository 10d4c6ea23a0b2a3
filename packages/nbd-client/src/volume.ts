import { formatSize, type RemoteSlab, SwapServerSession } from '@rdmakit/swap-server'
import {
  type CompletionChannel,
  type CompletionQueue,
  type Context,
  type ProtectionDomain,
  UsageError,
} from '@rdmakit/verbs'
import { BlockEngine, type BlockEngineOptions, type Lane } from './engine.js'

export interface VolumeOptions {
  /** one entry for each server: its URIs, tried in order until one answers */
  readonly servers: readonly (readonly string[])[]
  /** bytes, a multiple of 4096 */
  readonly size: number
  /** NBD connections that can be served at once, 1 … 64 */
  readonly lanes: number
  readonly engine?: Omit<BlockEngineOptions, 'size' | 'slabSize'>
  readonly signal?: AbortSignal
  /** told of each step on the way, for people */
  readonly progress?: (step: string) => void
}

/** A server of a volume and what the volume holds there. */
export interface VolumeServer {
  readonly session: SwapServerSession
  readonly slabs: number
  /** why it is gone; undefined while it lives */
  readonly failure: string | undefined
}

interface ServerEntry {
  readonly session: SwapServerSession
  slabs: number
  failure: string | undefined
}

/**
 * Remote memory as a block device: sessions with swap-servers, slabs placed on them, and the engine
 * that moves pages there. Everything that it opened, {@link close} closes.
 */
export class Volume {
  readonly engine: BlockEngine
  readonly size: number
  readonly lanes: Lane[] = []
  readonly #servers: ServerEntry[]
  readonly #onFailure = new Set<(server: VolumeServer) => void>()
  readonly #context: Context
  readonly #protectionDomain: ProtectionDomain
  #closing: Promise<void> | undefined

  private constructor(sessions: SwapServerSession[], slabSize: number, options: VolumeOptions) {
    this.size = options.size
    this.#servers = sessions.map((session) => ({ session, slabs: 0, failure: undefined }))
    this.#context = (sessions[0] as SwapServerSession).context
    this.#protectionDomain = this.#context.allocateProtectionDomain()
    this.engine = new BlockEngine({ ...options.engine, size: options.size, slabSize })
  }

  /**
   * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
   * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together, or
   *   hold too little; SwapServerError: a server refused
   */
  static async open(options: VolumeOptions): Promise<Volume> {
    const progress = options.progress ?? (() => {})
    const sessions: SwapServerSession[] = []
    let volume: Volume | undefined
    try {
      for (const uris of options.servers) {
        progress(`connecting to ${uris.join(' or ')}`)
        sessions.push(
          await SwapServerSession.open(uris, options.signal === undefined ? {} : { signal: options.signal }),
        )
      }
      const slabSize = commonSlabSize(sessions)
      checkRoom(sessions, options.size, slabSize)
      volume = new Volume(sessions, slabSize, options)
      await volume.#placeSlabs(slabSize, progress)
      volume.#watchServers()
      for (let i = 0; i < options.lanes; i++) await volume.#addLane()
      return volume
    } catch (failure) {
      if (volume !== undefined) await volume.close()
      else await Promise.all(sessions.map((session) => session.close()))
      throw failure
    }
  }

  get servers(): readonly VolumeServer[] {
    return this.#servers
  }

  /** True when no server is left: every request for a written page fails. */
  get lost(): boolean {
    return this.#servers.every(({ failure }) => failure !== undefined)
  }

  /** Calls `listener` once for each server that is lost. */
  onServerFailure(listener: (server: VolumeServer) => void): void {
    this.#onFailure.add(listener)
  }

  /** Answers what is in flight, ends the engine, then the sessions; the servers free the slabs. Idempotent. */
  close(timeout = 5_000): Promise<void> {
    this.#closing ??= (async () => {
      this.#onFailure.clear()
      try {
        await this.engine.close(timeout)
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

  /** Spreads the slabs: each goes to the server with the most room left. */
  async #placeSlabs(slabSize: number, progress: (step: string) => void): Promise<void> {
    const room = this.#servers.map(({ session }) => session.freeSlabs)
    const places: number[] = []
    for (let slab = 0; slab < this.engine.slabCount; slab++) {
      const server = room.indexOf(Math.max(...room))
      places.push(server)
      room[server] = (room[server] as number) - 1
    }
    for (const [index, server] of this.#servers.entries()) {
      const mine = places.flatMap((place, slab) => (place === index ? [slab] : []))
      // In small batches, so that a large volume shows its progress.
      for (let done = 0; done < mine.length; done += 8) {
        const batch = mine.slice(done, done + 8)
        const remote = await server.session.allocate(batch.length)
        for (const [i, slab] of batch.entries()) this.#map(slab, index, remote[i] as RemoteSlab)
        server.slabs += batch.length
        progress(
          `${server.session.uri}: ${formatSize(server.slabs * slabSize)} of ${formatSize(mine.length * slabSize)} allocated`,
        )
      }
    }
  }

  #map(slab: number, server: number, { remoteKey, address }: RemoteSlab): void {
    this.engine.mapSlab(slab, { server, remoteKey, address })
  }

  #watchServers(): void {
    for (const [index, { session }] of this.#servers.entries())
      void session.lost.then((reason) => this.#fail(index, reason))
    this.engine.on('serverFailed', ({ server, reason }) => this.#fail(server, reason))
  }

  #fail(index: number, reason: string): void {
    const server = this.#servers[index]
    if (server === undefined || server.failure !== undefined || this.#closing !== undefined) return
    server.failure = reason
    this.engine.failServer(index, reason)
    for (const listener of this.#onFailure) listener(server)
  }

  /** One NBD connection's verbs objects: a completion queue, a queue pair per server, an arena. */
  async #addLane(): Promise<void> {
    const needs = BlockEngine.laneRequirements()
    const channel: CompletionChannel = this.#context.createCompletionChannel()
    const completionQueue: CompletionQueue = this.#context.createCompletionQueue({
      entries: needs.completionQueueEntries,
      channel,
      progress: 'manual',
    })
    const arena = await this.#protectionDomain.allocateMemoryRegion(needs.arenaBytes, ['local-write'])
    const queuePairs = []
    for (const { session } of this.#servers)
      queuePairs.push(
        await session.connectData(this.#protectionDomain, {
          sendQueue: completionQueue,
          maxSend: needs.sendQueueDepth,
          maxReceive: 1,
          maxInlineData: needs.maxInlineData,
        }),
      )
    this.lanes.push(this.engine.addLane({ completionQueue, channel, queuePairs, memoryRegions: [arena] }))
  }
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

function checkRoom(sessions: readonly SwapServerSession[], size: number, slabSize: number): void {
  const needed = Math.ceil(size / slabSize)
  const free = sessions.reduce((sum, session) => sum + session.freeSlabs, 0)
  if (free < needed)
    throw new UsageError(
      `server too small: ${sessions.map(({ uri }) => uri).join(', ')} can lend ${formatSize(free * slabSize)}, the volume needs ${formatSize(needed * slabSize)}; choose a smaller --size, start the server with more --memory, or add a --server`,
    )
}
