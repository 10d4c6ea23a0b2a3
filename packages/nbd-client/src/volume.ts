import { formatSize } from '@rdmakit/operator-kit'
import type { RemoteSlab, SwapServerSession } from '@rdmakit/swap-server'
import { type Context, type ProtectionDomain, type QueuePair, UsageError } from '@rdmakit/verbs'
import type { BlockEngine } from './engine.js'
import type { Lane } from './engine-lane.js'
import type { FencedError } from './fenced.js'
import type { KeptVolume } from './kept-volume.js'
import { LaneEnds, type RunningLane } from './lane-ends.js'
import { Migration } from './migration.js'
import { placeSlabs } from './placement.js'
import { Recall } from './recall.js'
import { Repair } from './repair.js'
import { askFenced } from './resume-session.js'
import { checkRoom, commonSlabSize, openSession } from './server-fit.js'
import { ServerIndexes } from './server-indexes.js'
import { type SlabState, SlabTable } from './slab-table.js'
import {
  type Adopted,
  adoptSlabs,
  backedUp,
  contextOf,
  moveToIncarnations,
  onMaps,
  renumber,
  serversOf,
  takeSessions,
} from './take-over.js'
import { ThinSlabs } from './thin-slabs.js'
import { Turns } from './turns.js'
import {
  makeEngine,
  type RaisedOptions,
  raised,
  type ServerFailure,
  sessionOptions,
  type VolumeOptions,
} from './volume-options.js'
import { VolumeServer } from './volume-server.js'

const PAGE = 4096
/** A server that has failed is asked so long whether another process has the volume. */
const ASK_FENCED_MS = 5_000

/**
 * Remote memory as a block device: sessions with swap-servers, slabs placed on them, and the engine
 * that moves pages there. Everything that it opened, {@link close} closes.
 */
export class Volume {
  readonly engine: BlockEngine
  readonly migration: Migration
  /** undefined: not thin */
  readonly thin: ThinSlabs | undefined
  readonly size: number
  readonly replicas: number
  readonly #options: RaisedOptions
  readonly #servers: VolumeServer[]
  readonly #table: SlabTable
  readonly #repair: Repair
  readonly #lanes: RunningLane[] = []
  readonly #onBackupFailure = new Set<(reason: string) => void>()
  /** there is a backup, and it has not failed */
  #backedUp: boolean
  readonly #onFailure = new Set<(failure: ServerFailure) => void>()
  readonly #onFenced = new Set<(failure: FencedError) => void>()
  #fenced: FencedError | undefined
  readonly #context: Context
  readonly #protectionDomain: ProtectionDomain
  readonly #progress: (step: string) => void
  readonly #recall: Recall
  readonly #indexes: ServerIndexes
  #leaving = false
  #quiescing: Promise<void> | undefined
  #closing: Promise<void> | undefined
  /** when the last server failed, of performance.now() */
  #failedAt = 0

  private constructor(
    engine: BlockEngine,
    servers: VolumeServer[],
    context: Context,
    options: RaisedOptions,
  ) {
    this.size = options.size
    this.replicas = options.replicas ?? 1
    this.#options = options
    this.#progress = options.progress ?? (() => {})
    this.#servers = servers
    this.#context = context
    this.#protectionDomain = context.allocateProtectionDomain()
    this.engine = engine
    this.#backedUp = options.backup !== undefined
    for (const warning of engine.backupWarnings) this.#progress(`warning: ${warning}`)
    this.#table = new SlabTable(this.engine, this.replicas, () => this.#backedUp)
    const shared = { engine: this.engine, table: this.#table, servers, turns: new Turns() }
    const size = (slabs: number) => formatSize(slabs * engine.slabSize)
    this.#repair = new Repair({
      ...shared,
      spares: options.spares ?? (this.replicas > 1 || this.#backedUp ? 1 : 0),
      repaired: (slabs) => this.#progress(`${size(slabs)} of the volume repaired`),
      failed: (reason) => this.#progress(`repair: ${reason}`),
    })
    this.#indexes = new ServerIndexes({
      ...shared,
      lanes: this.#lanes,
      keep: (list) => options.keep?.(list),
      failed: (reason) => this.#progress(`warning: ${reason}`),
    })
    this.#recall = new Recall({
      session: sessionOptions(options),
      slabSize: engine.slabSize,
      reconnect: options.reconnect ?? 0,
      join: (uris, session) => this.#join(uris, session),
      rejoin: (gone, session, slabs) => this.#rejoin(gone, session, slabs),
      shared: (gone) => this.#sharesSession(gone),
      fenced: (failure) => this.#fence(failure),
      lose: (gone, reason) => this.#lose(gone, reason),
      progress: this.#progress,
    })
    this.thin = options.thin
      ? new ThinSlabs({
          ...shared,
          waits: () => this.#waitsForMemory(),
          degraded: () => this.#repair.wake(),
          exhausted: (exhausted) =>
            this.#progress(
              exhausted
                ? `the servers have no memory left: first writes to the other ${size(this.#table.unmapped)} of the volume fail with ENOSPC`
                : 'the servers have memory again',
            ),
          failed: (reason) => this.#progress(`memory ahead of use: ${reason}`),
        })
      : undefined
    this.migration = new Migration({
      ...shared,
      thin: this.thin,
      degraded: () => this.#repair.wake(),
      moving: ({ session }, slabs) =>
        this.#progress(`${session.uri} needs its memory back: moving ${size(slabs)} to other servers`),
      moved: ({ session }, slabs) => this.#progress(`${size(slabs)} moved away from ${session.uri}`),
      stuck: ({ session }, slabs) =>
        this.#progress(`${size(slabs)} stay on ${session.uri}: other servers have no room`),
      failed: (reason) => this.#progress(`moving slabs: ${reason}`),
    })
  }

  /**
   * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
   * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together;
   *   SwapServerError: a server refused, or ENOSPC: they hold too little
   */
  static async open(given: VolumeOptions): Promise<Volume> {
    const options = raised(given)
    const progress = options.progress ?? (() => {})
    const servers: VolumeServer[] = []
    let volume: Volume | undefined
    try {
      for (const uris of options.servers) {
        progress(`connecting to ${uris.join(' or ')}`)
        const session = await openSession(uris, sessionOptions(options))
        servers.push(new VolumeServer(servers.length, uris, session))
      }
      sayUnfenced(servers, options)
      const slabSize = commonSlabSize(servers.map(({ session }) => session))
      await checkRoom(servers, options, slabSize)
      const context = (servers[0] as VolumeServer).session.context
      const made = new Volume(makeEngine(options, slabSize), servers, context, options)
      volume = made
      options.prepare?.(made.engine)
      options.keep?.(servers)
      if (options.thin !== true) await made.#placeSlabs(slabSize)
      await made.#addLanes()
      made.#start()
      return made
    } catch (failure) {
      if (volume !== undefined) await volume.close()
      else await Promise.all(servers.map(({ session }) => session.close()))
      throw failure
    }
  }

  /**
   * Goes on with the volume of a process that has ended, or {@link leave left} it: its page map and slab map are in
   * `options.engine`, its servers in `kept`. Servers that do not give their session back have failed. Repair
   * waits for {@link start}.
   * @throws FencedError: another process has the volume; Error when no server gives its session back and there is no backup; EBUSY: another process has the maps;
   *   ConfigurationError: they are not there, of another volume, or damaged
   */
  static async takeOver(
    given: VolumeOptions,
    kept: KeptVolume,
  ): Promise<{ volume: Volume; adopted: Adopted }> {
    const { progress = () => {} } = given
    const { size, replicas, thin = false } = kept
    const engine = onMaps(given.engine ?? {}, () => makeEngine({ ...given, size, thin }, kept.slabSize))
    let volume: Volume | undefined
    try {
      given.prepare?.(engine)
      const options = raised(given)
      const found = await takeSessions(
        engine,
        kept.servers,
        sessionOptions(options),
        backedUp(options, engine),
        progress,
      )
      const taken = renumber(engine, found)
      const up = new Set(taken.resumed.flatMap(({ kept: { uris } }) => uris))
      for (const { kept: server, reason } of taken.gone) {
        engine.failServer(server.index, reason)
        // An earlier incarnation of one that is back is nothing that anybody misses.
        if (!server.uris.some((uri) => up.has(uri))) progress(`lost ${server.uris.join(' or ')}: ${reason}`)
      }
      const context = taken.resumed[0]?.session.context ?? contextOf(options, kept)
      const servers = serversOf(taken, engine.failedServers())
      sayUnfenced(servers, options)
      volume = new Volume(engine, servers, context, { ...options, size, replicas, thin })
      if (taken !== found) options.keep?.(servers)
      moveToIncarnations(engine, taken)
      const adopted = adoptSlabs(engine, volume.#table, servers, taken, thin)
      volume.thin?.lookAtAll()
      for (const [server, orphans] of adopted.orphans)
        if (thin) server.keep(orphans)
        // A server that cannot do it now is about to fail, and its session to end.
        else await server.session.free(orphans).catch(() => {})
      await volume.#addLanes()
      return { volume, adopted }
    } catch (failure) {
      if (volume === undefined) {
        await engine.close()
        throw failure
      }
      await volume.leave()
      // A process that comes behind this one takes its sessions, which looks like servers that are gone.
      throw (await volume.#askFenced(volume.#servers)) ?? failure
    }
  }

  /** After {@link takeOver}, when the volume is in use again: repair begins, and servers that are gone are called. */
  start(): void {
    this.#start()
    for (const server of this.#servers) {
      const successor = this.#servers.some((other) => server.isBefore(other))
      if (server.failure !== undefined && !server.isVacant && !successor) this.#recall.call(server)
    }
    this.#indexes.release()
  }

  /** Every incarnation of every server that something may name, by index; {@link VolumeServer.vacant} others. */
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

  /** slabs that have no place, for nothing was written to them */
  get unmapped(): number {
    return this.#table.unmapped
  }

  /** True when neither a server nor the backup is left: every request for a written page fails. */
  get lost(): boolean {
    return !this.#backedUp && this.#servers.every(({ failure, away }) => failure !== undefined && !away)
  }

  /** Calls `listener` for each server that is lost, and for one that was waited for once more when it is given up. */
  onServerFailure(listener: (failure: ServerFailure) => void): void {
    this.#onFailure.add(listener)
  }

  /** Another process has taken the volume over, and this one must stop; undefined as far as it knows not. */
  get fenced(): FencedError | undefined {
    return this.#fenced
  }

  /**
   * Calls `listener` when another process has taken the volume over, at once if it has. From then on nothing is called, repaired or written
   * down any more, and {@link close} leaves the sessions.
   */
  onFenced(listener: (failure: FencedError) => void): void {
    this.#onFenced.add(listener)
    if (this.#fenced !== undefined) listener(this.#fenced)
  }

  /** Asks the servers that have failed whether another process has the volume: before anything of it is ended. */
  async askFenced(): Promise<FencedError | undefined> {
    if (this.#fenced === undefined) {
      const found = await this.#askFenced(this.#servers.filter(({ failure }) => failure !== undefined))
      if (found !== undefined) this.#fence(found)
    }
    return this.#fenced
  }

  /** Asks each of these for its session, which it is left with. */
  async #askFenced(servers: readonly VolumeServer[]): Promise<FencedError | undefined> {
    if (this.#options.takeOver.number === 0) return undefined
    const options = { ...sessionOptions(this.#options), signal: AbortSignal.timeout(ASK_FENCED_MS) }
    const reached = servers.filter((server) => server.reached)
    // One that came back has its session under several indexes.
    const sessions = new Map(reached.map((server) => [server.identity?.session, server]))
    const asking = [...sessions.values()].map(
      ({ uris, identity }) => identity && askFenced(uris, identity, options),
    )
    return (await Promise.all(asking)).find((fenced) => fenced !== undefined)
  }

  /** Calls `listener` when the backup has failed; the volume goes on without it. */
  onBackupFailure(listener: (reason: string) => void): void {
    this.#onBackupFailure.add(listener)
  }

  /** Answers what is in flight, ends the engine, then the sessions; the servers free the slabs. Idempotent. */
  close(timeout = 5_000): Promise<void> {
    this.#closing ??= (async () => {
      try {
        await this.quiesce(timeout)
      } finally {
        const reached = this.#servers.filter((server) => server.reached)
        await Promise.all(reached.map(({ session }) => (this.#leaving ? session.leave() : session.close())))
        this.#protectionDomain.close()
      }
    })()
    return this.#closing
  }

  /**
   * The first part of {@link close}: nothing moves any more, and another engine may have the maps. The sessions
   * are still there, for whoever resumes them. Idempotent.
   */
  quiesce(timeout = 5_000): Promise<void> {
    this.#quiescing ??= (async () => {
      this.#onFailure.clear()
      this.#onFenced.clear()
      this.#onBackupFailure.clear()
      const recalled = this.#recall.close()
      try {
        await this.engine.close(timeout)
      } finally {
        await Promise.all([this.#repair.close(), this.migration.close(), this.thin?.close(), recalled])
        await this.#indexes.close()
      }
    })()
    return this.#quiescing
  }

  /** Like {@link close}, but the sessions stay at the servers to linger, for {@link takeOver}. */
  leave(timeout?: number): Promise<void> {
    this.#leaving = true
    return this.close(timeout)
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
          `${formatSize((slab + 1) * slabSize)} of ${formatSize(places.length * slabSize)} allocated on ${this.#servers.map(({ uri, slabs }) => `${uri}: ${slabs}`).join(', ')} slabs`,
        )
    }
  }

  async #addLanes(): Promise<void> {
    const lanes = this.#options.lanes
    // At once: round trips to servers are what a client waits for when the volume is taken over.
    const opening = Array.from({ length: lanes + (this.#servers.length > 1 || this.#backedUp ? 1 : 0) }, () =>
      this.#openLane(),
    )
    // Nothing of them may go on when one fails.
    await Promise.allSettled(opening)
    for (const [index, { ends, queuePairs }] of (await Promise.all(opening)).entries()) {
      const resources = ends.resources(queuePairs)
      const lane = index < lanes ? this.engine.addLane(resources) : this.engine.addRefillLane(resources)
      this.#lanes.push({ lane, ends, queuePairs })
    }
  }

  #start(): void {
    if (this.#waits) this.engine.waitForServers()
    this.engine.stampBackup()
    for (const server of this.#servers) if (server.failure === undefined) this.#watch(server)
    this.engine.on('backupFailed', ({ reason }) => this.#loseBackup(reason))
    this.engine.on('serverFailed', ({ server, reason }) => this.#fail(this.#servers[server], reason))
    // What failed between the lanes' start and this line.
    const { backup } = this.engine.statistics()
    for (const index of this.engine.failedServers())
      this.#fail(this.#servers[index], 'it failed at the start')
    if (backup?.working === false) this.#loseBackup('it failed at the start')
    this.#recall.start()
    this.#repair.wake()
    this.thin?.wake()
  }

  #watch(server: VolumeServer): void {
    const { index, session } = server
    session.onServerRequest(this.migration.handler(server))
    session.meter(
      () => this.engine.usage(index),
      (limits) => this.engine.setLimits(index, limits),
    )
    void server.session.lost.then((reason) => this.#fail(server, reason))
  }

  /** What the maps say from now on is what the other process has in its own. */
  #fence(failure: FencedError): void {
    if (this.#over) return
    this.#fenced = failure
    this.#leaving = true
    for (const part of [this.#recall, this.#repair, this.migration, this.thin, this.#indexes])
      void part?.close().catch(() => {})
    for (const listener of this.#onFenced) listener(failure)
  }

  /** Nothing that happens to a server concerns this process any more. */
  get #over(): boolean {
    return this.#quiescing !== undefined || this.#fenced !== undefined
  }

  #fail(server: VolumeServer | undefined, reason: string): void {
    if (server === undefined || server.failure !== undefined || this.#over) return
    server.failure = reason
    this.#failedAt = performance.now()
    server.away = this.#waits && server.session.linger > 0 && !server.session.gone
    this.engine.failServer(server.index, reason)
    this.#drop(server, reason, server.away ? this.engine.failedServers() : undefined)
    this.#recall.call(server)
  }

  /** Somebody waited for it. */
  #lose(server: VolumeServer, reason: string): void {
    if (this.#over) return
    server.away = false
    server.failure = reason
    this.#drop(server, reason)
  }

  /** @param failed see {@link SlabTable.dropServer} */
  #drop(server: VolumeServer, reason: string, failed?: readonly number[]): void {
    this.thin?.collect()
    const { degraded, lost, kept } = this.#table.dropServer(server, failed)
    server.away = kept.length > 0
    if (server.away) this.#keepAway(server)
    const bytes = (slabs: number[]) => slabs.length * this.engine.slabSize
    const missing = lost.reduce((sum, slab) => sum + this.engine.missingInBackup(slab) * PAGE, 0)
    for (const listener of this.#onFailure)
      listener({
        server,
        reason,
        degraded: bytes(degraded),
        backedUp: this.#backedUp ? bytes(lost) - missing : 0,
        away: bytes(kept),
        lost: this.#backedUp ? missing : bytes(lost),
      })
    this.#repair.wake()
    this.thin?.wake()
  }

  /** Requests wait for servers that may come back. What a server has missed a backup may have. */
  get #waits(): boolean {
    return (this.#options.reconnect ?? 0) > 0 && this.#options.backup === undefined
  }

  /** Servers that are gone are waited for, and none is left that could say whether it has memory. */
  #waitsForMemory(): boolean {
    if (this.#servers.some(({ away }) => away)) return true
    const left = this.#servers.some(({ failure }) => failure === undefined)
    return this.#waits && !left && performance.now() - this.#failedAt < (this.#options.reconnect ?? 0)
  }

  /** What cannot be kept costs the next process the server, not this one. */
  #keepAway(server: VolumeServer): void {
    try {
      this.#options.away?.(server)
    } catch (failure) {
      this.#progress(
        `warning: ${(failure as Error).message}; ${server.uri} is waited for by this process only`,
      )
    }
  }

  #loseBackup(reason: string): void {
    if (this.#closing !== undefined) return
    this.#backedUp = false
    for (const listener of this.#onBackupFailure) listener(reason)
    this.#repair.wake()
  }

  /** A server that failed comes back with empty memory. @throws as Recall's join */
  async #join(uris: readonly string[], session: SwapServerSession): Promise<void> {
    await this.#takeIn(uris, session)
    this.#progress(`${session.uri} takes part again, with empty memory`)
    this.#indexes.release()
    this.#repair.wake()
    this.thin?.wake()
  }

  /** A server that was away comes back with what it had. @throws as Recall's rejoin */
  async #rejoin(gone: VolumeServer, session: SwapServerSession, slabs: readonly RemoteSlab[]): Promise<void> {
    let moved: number[] = []
    let rest: RemoteSlab[] = []
    // Before anything is heard of its failure: who fails without slabs is nobody's, and its session ends.
    await this.#takeIn(gone.uris, session, (server) => {
      this.thin?.collect()
      ;({ moved, rest } = this.#table.moveServer(gone, server, slabs))
      if (this.thin !== undefined) server.keep(rest)
    })
    this.#progress(
      `${session.uri} is back with what it had: ${formatSize(moved.length * this.engine.slabSize)} of the volume go on`,
    )
    // What it did not have after all.
    if (this.#table.heldBy(gone).size > 0) this.#lose(gone, 'it came back without some of its slabs')
    gone.away = false
    this.#indexes.release()
    // A server that cannot do it now is about to fail; these are looked at again when it comes back.
    if (this.thin === undefined) await session.free(rest).catch(() => {})
    this.#repair.wake()
    this.thin?.wake()
  }

  /**
   * A server takes part under an index that is free, once all lanes reach it.
   * @param adopt what becomes its own, before its failure counts
   * @throws as Recall's join
   */
  async #takeIn(
    uris: readonly string[],
    session: SwapServerSession,
    adopt: (server: VolumeServer) => void = () => {},
  ): Promise<void> {
    if (session.slabSize !== this.engine.slabSize || session.context !== this.#context)
      throw new UsageError('it came back with another slab size or device')
    const connecting = this.#lanes.map(async (running) => ({
      running,
      queuePair: await running.ends.connect(session),
    }))
    await Promise.allSettled(connecting)
    const connected = await Promise.all(connecting)
    if (this.#fenced !== undefined) throw this.#fenced
    // Before anything is awaited; without a slab it is nobody's replica.
    const server = this.#indexes.take(uris, session)
    const { index } = server
    try {
      for (const { running, queuePair } of connected) {
        this.engine.connectServer(running.lane.index, index, queuePair)
        running.queuePairs[index] = queuePair
      }
      await this.engine.synchronize()
      // It was no server yet when the engine or its session said so.
      const { over } = session
      if (over !== undefined || this.engine.failedServers().includes(index))
        throw new Error(`it failed while it joined${over === undefined ? '' : `: ${over}`}`)
    } catch (failure) {
      this.#indexes.giveUp(server, (failure as Error).message)
      throw failure
    }
    adopt(server)
    server.joining = undefined
    server.failure = undefined
    this.#watch(server)
  }

  /** Another incarnation of the server has its session, or may come back with it. */
  #sharesSession(server: VolumeServer): boolean {
    return this.#servers.some(
      (other) =>
        other !== server &&
        other.identity !== undefined &&
        other.identity.session === server.identity?.session &&
        (other.failure === undefined || other.away || this.#table.heldBy(other).size > 0),
    )
  }

  /** One NBD connection's verbs objects, or the refill lane's; queue pairs by server index. */
  async #openLane(): Promise<{ ends: LaneEnds; queuePairs: (QueuePair | null)[] }> {
    const ends = await LaneEnds.open(this.#context, this.#protectionDomain)
    const connecting = this.#servers.map(async (server) =>
      server.failure === undefined ? await ends.connect(server.session) : null,
    )
    await Promise.allSettled(connecting)
    return { ends, queuePairs: await Promise.all(connecting) }
  }
}

/** Says which servers would give the volume's memory to a second process. */
function sayUnfenced(servers: readonly VolumeServer[], { takeOver, progress }: RaisedOptions): void {
  if (takeOver.number === 0) return
  for (const { failure, session } of servers.filter(({ reached }) => reached))
    if (failure === undefined && !session.fences)
      progress?.(
        `warning: ${session.uri} compares no take-over numbers: a second process with a copy of the state folder would get this volume's memory; upgrade swap-server there`,
      )
}
