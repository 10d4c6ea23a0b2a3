import { formatSize } from '@rdmakit/operator-kit'
import type { RemoteSlab, SwapServerSession } from '@rdmakit/swap-server'
import { UsageError } from '@rdmakit/verbs'
import type { FencedError } from '../servers/fenced-error.js'
import { ServerReconnector, WrongAddressError } from '../servers/server-reconnector.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { ServerIndexes } from './server-indexes.js'
import type { SlabWork } from './slab-work.js'
import type { VolumeLanes } from './volume-lanes.js'
import { sessionOptions } from './volume-options.js'
import type { VolumeState } from './volume-state.js'

const PAGE = 4096

/** Which servers take part in a volume: they fail, are waited for and called, and take part again. */
export class ServerMembership {
  readonly #state: VolumeState
  readonly #engine: VolumeState['engine']
  readonly #servers: readonly VolumeServer[]
  readonly #options: VolumeState['options']
  readonly #slabs: SlabWork
  readonly #lanes: VolumeLanes
  readonly #reconnector: ServerReconnector
  readonly #indexes: ServerIndexes
  /** when the last server failed, of performance.now() */
  #failedAt = 0

  /** @param fenced told when a server says that another process has the volume */
  constructor(
    state: VolumeState,
    slabs: SlabWork,
    lanes: VolumeLanes,
    fenced: (failure: FencedError) => void,
  ) {
    this.#state = state
    this.#slabs = slabs
    this.#lanes = lanes
    const { engine, servers, options, progress } = state
    this.#engine = engine
    this.#servers = servers
    this.#options = options
    this.#indexes = new ServerIndexes({
      engine,
      table: slabs.table,
      servers,
      lanes: lanes.running,
      keep: (list) => options.keep?.(list),
      failed: (reason) => progress(`warning: ${reason}`),
    })
    this.#reconnector = new ServerReconnector({
      session: sessionOptions(options),
      volume: engine,
      reconnect: options.reconnect ?? 0,
      join: (uris, session) => this.#join(uris, session),
      rejoin: (gone, session, slabs) => this.#rejoin(gone, session, slabs),
      shared: (gone) => this.#sharesSession(gone),
      fenced,
      lose: (gone, reason) => this.#lose(gone, reason),
      progress,
    })
  }

  /** From now on requests wait for servers that may come back, whose failures are heard after {@link start}. */
  waitForServers(): void {
    if (this.#waits) this.#engine.waitForServers()
  }

  /** From now on failures of servers are heard, and servers that were called may join. */
  start(): void {
    this.waitForServers()
    this.#engine.stampBackup()
    for (const server of this.#servers) if (server.failure === undefined) this.#watch(server)
    this.#engine.on('serverFailed', ({ server, reason }) => this.#fail(this.#servers[server], reason))
    // Servers that failed between the lanes' start and this line.
    for (const index of this.#engine.failedServers())
      this.#fail(this.#servers[index], 'it failed at the start')
    this.#reconnector.start()
  }

  /** Calls those that had failed before this process had the volume. */
  callBack(): void {
    for (const server of this.#servers) {
      const successor = this.#servers.some((other) => server.isBefore(other))
      if (server.failure !== undefined && !server.isVacant && !successor) this.#reconnector.call(server)
    }
    this.#indexes.release()
  }

  /** Servers that are gone are waited for, and none is left that could say whether it has memory. */
  waitsForMemory(): boolean {
    if (this.#servers.some(({ away }) => away)) return true
    const left = this.#servers.some(({ failure }) => failure === undefined)
    return this.#waits && !left && performance.now() - this.#failedAt < (this.#options.reconnect ?? 0)
  }

  /** No server is called any more. */
  endCalls(): Promise<void> {
    return this.#reconnector.close()
  }

  /** Resolves when no index is released any more. The engine must be closed. */
  endIndexes(): Promise<void> {
    return this.#indexes.close()
  }

  #watch(server: VolumeServer): void {
    const { index, session } = server
    session.onServerRequest(this.#slabs.migration.handler(server))
    session.meter(
      () => this.#engine.usage(index),
      (limits) => this.#engine.setLimits(index, limits),
    )
    void server.session.lost.then((reason) => this.#fail(server, reason))
  }

  #fail(server: VolumeServer | undefined, reason: string): void {
    if (server === undefined || server.failure !== undefined || this.#state.over) return
    server.failure = reason
    this.#failedAt = performance.now()
    server.away = this.#waits && server.session.linger > 0 && !server.session.gone
    this.#engine.failServer(server.index, reason)
    this.#drop(server, reason, server.away ? this.#engine.failedServers() : undefined)
    this.#reconnector.call(server)
  }

  /** Ends the wait for a server: its data are lost. */
  #lose(server: VolumeServer, reason: string): void {
    if (this.#state.over) return
    server.away = false
    server.failure = reason
    this.#drop(server, reason)
  }

  /** @param failed see {@link SlabTable.dropServer} */
  #drop(server: VolumeServer, reason: string, failed?: readonly number[]): void {
    this.#slabs.thin?.collect()
    const { degraded, lost, kept } = this.#slabs.table.dropServer(server, failed)
    server.away = kept.length > 0
    if (server.away) this.#keepAway(server)
    const bytes = (slabs: number[]) => slabs.length * this.#engine.slabSize
    const missing = lost.reduce((sum, slab) => sum + this.#engine.missingInBackup(slab) * PAGE, 0)
    for (const listener of this.#state.onFailure)
      listener({
        server,
        reason,
        degraded: bytes(degraded),
        backedUp: this.#state.backedUp ? bytes(lost) - missing : 0,
        away: bytes(kept),
        lost: this.#state.backedUp ? missing : bytes(lost),
      })
    this.#slabs.wake()
  }

  /** Requests wait for servers that may come back. What a server has missed a backup may have. */
  get #waits(): boolean {
    return (this.#options.reconnect ?? 0) > 0 && this.#options.backup === undefined
  }

  /** If this cannot be saved, the next process loses the server, not this one. */
  #keepAway(server: VolumeServer): void {
    try {
      this.#options.away?.(server)
    } catch (failure) {
      this.#state.progress(
        `warning: ${(failure as Error).message}; only this process waits for ${server.uri}`,
      )
    }
  }

  /** A server that failed comes back with empty memory. @throws as ServerReconnector's join */
  async #join(uris: readonly string[], session: SwapServerSession): Promise<void> {
    await this.#takeIn(uris, session)
    this.#state.progress(`${session.uri} joins again, with empty memory`)
    this.#indexes.release()
    this.#slabs.wake()
  }

  /** A server that was away comes back with what it had. @throws as ServerReconnector's rejoin */
  async #rejoin(gone: VolumeServer, session: SwapServerSession, slabs: readonly RemoteSlab[]): Promise<void> {
    let moved: number[] = []
    let rest: RemoteSlab[] = []
    // This must happen before a failure is reported: a server that fails without slabs is dropped, and its
    // session ends.
    await this.#takeIn(gone.uris, session, (server) => {
      this.#slabs.thin?.collect()
      ;({ moved, rest } = this.#slabs.table.moveServer(gone, server, slabs))
      if (this.#slabs.thin !== undefined) server.keep(rest)
    })
    this.#state.progress(
      `${session.uri} is back with its memory: ${formatSize(moved.length * this.#engine.slabSize)} of the volume continue`,
    )
    // Replicas that it did not have after all.
    if (this.#slabs.table.heldBy(gone).size > 0) this.#lose(gone, 'it came back without some of its slabs')
    gone.away = false
    this.#indexes.release()
    // A server that cannot do it now is about to fail; these are looked at again when it comes back.
    if (this.#slabs.thin === undefined) await session.free(rest).catch(() => {})
    this.#slabs.wake()
  }

  /**
   * A server takes part under an index that is free, once all lanes reach it.
   * @param adopt what becomes its own, before its failure counts, of one that comes back with its memory
   * @throws as ServerReconnector's join
   */
  async #takeIn(
    uris: readonly string[],
    session: SwapServerSession,
    adopt?: (server: VolumeServer) => void,
  ): Promise<void> {
    if (session.slabSize !== this.#engine.slabSize)
      throw new UsageError('it came back with another slab size')
    if (session.context !== this.#state.context)
      throw new WrongAddressError(`${session.uri} is reached over another device than the volume's`)
    // Twice: no connection is made in vain, and another may have joined meanwhile.
    if (adopt === undefined) this.#checkOther(session)
    const connections = await this.#lanes.connect(session)
    if (this.#state.fenced !== undefined) throw this.#state.fenced
    if (adopt === undefined) this.#checkOther(session)
    // This must happen before any await; without a slab it has no replica.
    const server = this.#indexes.take(uris, session)
    const { index } = server
    try {
      this.#lanes.give(connections, index)
      await this.#engine.synchronize()
      // It was no server yet when the engine or its session said so.
      const { over } = session
      if (over !== undefined || this.#engine.failedServers().includes(index))
        throw new Error(`it failed while it joined${over === undefined ? '' : `: ${over}`}`)
    } catch (failure) {
      this.#indexes.giveUp(server, (failure as Error).message)
      throw failure
    }
    adopt?.(server)
    server.joining = undefined
    server.failure = undefined
    this.#watch(server)
    session.unref()
  }

  /**
   * Two replicas at one server would be lost together. One that is waited for may be back at any time, and comes before
   * an empty place at the same server.
   * @throws WrongAddressError: the server takes part already, at another address
   */
  #checkOther({ uri, epoch }: SwapServerSession): void {
    const there = this.#servers.find(
      ({ failure, joining, away, identity }) =>
        identity?.epoch === epoch && (failure === undefined || joining === 'now' || away),
    )
    if (there !== undefined)
      throw new WrongAddressError(`${uri} leads to the server at ${there.uri}, which takes part already`)
  }

  /** Another incarnation of the server has its session, or may come back with it. */
  #sharesSession(server: VolumeServer): boolean {
    return this.#servers.some(
      (other) =>
        other !== server &&
        other.identity !== undefined &&
        other.identity.session === server.identity?.session &&
        (other.failure === undefined || other.away || this.#slabs.table.heldBy(other).size > 0),
    )
  }
}
