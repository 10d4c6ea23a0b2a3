import { randomBytes } from 'node:crypto'
import { printable } from '@rdmakit/operator-kit'
import type { ConnectionRequest, Context, ProtectionDomain } from '@rdmakit/verbs'
import type { Logger } from 'pino'
import type { ControlConnection } from '../protocol/control-connection.js'
import { type control, TOKEN_BYTES, UNBOUND_VERSION } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { askActivity, askReclaim, tellEnding } from '../protocol/server-requests.js'
import { compareTakeOvers, judgeClaim, type TakeOver } from '../protocol/take-over-number.js'
import type { ProvenClient } from './admission/authentication.js'
import type { Actor, AuditEvent } from './audit-log.js'
import { answerRequest } from './control-request.js'
import { DataConnections } from './data-connections.js'
import { LingerTimer } from './linger-timer.js'
import type { Lending } from './memory/lending.js'
import type { SlabOwner } from './memory/reclaim.js'
import type { SlabStore } from './memory/slab-store.js'
import { drawSessionId } from './session-identity.js'
import { SessionSlabs } from './session-slabs.js'
import type { Bandwidth } from './tenants/bandwidth.js'
import type { Tenant, Tenants } from './tenants/tenants.js'

/** What all sessions of a server share. */
export interface SessionHost {
  readonly epoch: string
  readonly store: SlabStore
  readonly lending: Lending
  readonly bandwidth: Bandwidth
  readonly sessionTimeoutMs: number
  readonly log: Logger
  readonly maxDataConnections: number
  readonly tenants: Tenants
  /** milliseconds that a session may linger at most */
  readonly maxLingerMs: number
  /** What `asking` may know; undefined: a tenant that is not there any more. */
  query(asking: Tenant | undefined): control.QueryReply.$Properties
  record(who: Actor, event: AuditEvent): void
  /** A request was answered. */
  answered(request: string, seconds: number): void
  /** A session may linger: there is room for one more of its tenant's that does. */
  mayLinger(session: ClientSession): boolean
  /** A session may have one more data connection than it has had. */
  mayConnect(session: ClientSession): boolean
  /** The session is over, and what it had is free. */
  ended(session: ClientSession): void
}

/** A client that does not answer its server for so long is asked again later. */
const CLIENT_TIMEOUT_MS = 5_000

/** So long a session that ends waits for its client to hear of it. */
const ENDING_TIMEOUT_MS = 1_000

/**
 * One client that has shown who it is: its control connection, its protection domain, its slabs and its data connections.
 * Nobody else has a protection domain here: what comes before is a SessionHandshake.
 * When the control connection ends, everything of the client ends with it, unless it was granted to linger:
 * then another control connection may resume the session until its time is up.
 */
export class ClientSession implements SlabOwner {
  readonly id = drawSessionId()
  readonly token = randomBytes(TOKEN_BYTES)
  readonly context: Context
  /** Whose memory it takes. */
  readonly tenant: string
  readonly #host: SessionHost
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs: SessionSlabs
  readonly #data: DataConnections
  readonly #linger = new LingerTimer()
  readonly #opened = Date.now()
  /** undefined while the session lingers */
  #control: ControlConnection | undefined
  /** kept, for the connection that told it may be closed when it is asked for */
  #peer = ''
  #proven: ProvenClient
  #client: string
  /** of the process that has it, or had it last */
  #takeOver: TakeOver
  #closed = false
  #lastHeard = performance.now()

  /** Answers what comes from `connection` from now on. */
  constructor(host: SessionHost, connection: ControlConnection, proven: ProvenClient, takeOver: TakeOver) {
    this.#host = host
    this.context = connection.context
    this.tenant = proven.tenant.name
    this.#proven = proven
    this.#client = nameOf(proven)
    this.#takeOver = takeOver
    this.#protectionDomain = this.context.allocateProtectionDomain()
    this.#slabs = new SessionSlabs(host, this.tenant, this.#protectionDomain)
    this.#data = new DataConnections(this.#protectionDomain)
    this.#serve(connection)
  }

  get client(): string {
    return this.#client
  }

  /** Who it is, for the record. */
  get actor(): Actor {
    return { tenant: this.tenant, keyId: this.#proven.keyId, client: this.#client, peer: this.#peer }
  }

  get status(): control.SessionStatus.$Properties {
    return {
      client: this.#client,
      tenant: this.tenant,
      peer: this.#peer,
      slabs: this.#slabs.size,
      dataConnections: this.#data.size,
      ageMs: Date.now() - this.#opened,
      lingering: this.lingering,
    }
  }

  /** It is over, and what it had is free. */
  get closed(): boolean {
    return this.#closed
  }

  get present(): boolean {
    return !this.#closed && this.#control !== undefined
  }

  get opportunistic(): boolean {
    return this.#host.tenants.find(this.tenant)?.class === 'opportunistic'
  }

  get slabIds(): Iterable<number> {
    return this.#slabs.ids
  }

  activity(ids: readonly number[]): Promise<readonly number[]> {
    return askActivity((bytes) => this.#askClient(bytes), ids)
  }

  reclaim(ids: readonly number[]): Promise<readonly number[]> {
    return askReclaim((bytes) => this.#askClient(bytes), ids)
  }

  /** milliseconds since the client's last request; 0 when nobody has the session */
  get silence(): number {
    return this.lingering ? 0 : performance.now() - this.#lastHeard
  }

  /** For `milliseconds` this process did not run: no silence of the client's. */
  excuse(milliseconds: number): void {
    this.#lastHeard = Math.min(performance.now(), this.#lastHeard + milliseconds)
  }

  /** It has outlived its control connection and can be resumed. */
  get lingering(): boolean {
    return this.#linger.running
  }

  /** Data connections that it has had at once at most: so many it can have again after a link has broken. */
  get dataPlaces(): number {
    return this.#data.places
  }

  /** Which process has it, or had it last: none before that one gets it any more. */
  get takeOver(): TakeOver {
    return this.#takeOver
  }

  /**
   * Takes a data connection: a queue pair in this session's protection domain that posts nothing. One of a process
   * that does not have the session any more may come late.
   */
  async acceptData({ id }: ConnectionRequest, takeOver: TakeOver): Promise<void> {
    const connections = this.#data.present
    if (
      this.#closed ||
      compareTakeOvers(takeOver, this.#takeOver) !== 0 ||
      id.context !== this.context ||
      connections >= this.#host.maxDataConnections ||
      (connections >= this.#data.places && !this.#host.mayConnect(this))
    ) {
      id.reject()
      return
    }
    await this.#data.accept(id)
  }

  /**
   * The control connection is lost: the session lingers, or ends.
   * @param reason why, for the record
   */
  loseControl(reason: string): void {
    const connection = this.#control
    this.#control = undefined
    void connection?.close()
    if (this.#closed || this.#linger.granted === 0 || !this.#host.mayLinger(this)) {
      this.close(reason)
      return
    }
    // Nobody is there to use it.
    this.#host.bandwidth.leave(this)
    this.#host.log.info({ client: this.#client, lingerMs: this.#linger.granted, reason }, 'session lingers')
    this.#linger.start(() => this.close(`${reason}; nobody resumed it`))
  }

  /** See {@link DataConnections.end}. @throws Refusal ETIMEDOUT */
  endData(): Promise<void> | undefined {
    return this.#data.end()
  }

  /** Another process, or the same one again, wants it. @throws Refusal ESTALE, EBUSY; and whoever has the session keeps it */
  claim(takeOver: TakeOver, hello: control.Hello.$Properties): void {
    const claim = judgeClaim(this, takeOver, hello.resume?.unattended === true)
    if (claim === 'attended') throw new Refusal('EBUSY', `a client has the session: ${this.#client}`)
    if (claim === 'fenced')
      throw new Refusal(
        // What knows no numbers takes ESTALE for the end of the session, and its memory for lost.
        hello.takeOver == null ? 'EACCES' : 'ESTALE',
        `another process has taken the volume over: ${this.#client}, take-over ${this.#takeOver.number}, and this is take-over ${takeOver.number}`,
      )
    this.#takeOver = takeOver
  }

  /** Goes on with another control connection, behind {@link endData}. */
  resume(connection: ControlConnection, proven: ProvenClient): control.HelloReply.$Properties {
    this.#linger.stop()
    const old = this.#control
    this.#serve(connection)
    void old?.close()
    this.#proven = proven
    this.#client = nameOf(proven)
    return { ...this.welcome('session-resumed'), resumed: true }
  }

  /** What it begins with, or goes on with. */
  welcome(event: 'session-opened' | 'session-resumed'): control.HelloReply.$Properties {
    const { hello, keyId } = this.#proven
    const { store, epoch, sessionTimeoutMs, maxLingerMs } = this.#host
    const lingerMs = this.#linger.grant(hello.lingerMs ?? 0, maxLingerMs)
    this.#host.record(this.actor, { event })
    if (keyId !== undefined && hello.version === UNBOUND_VERSION)
      this.#host.log.warn({ client: this.#client }, 'an older client: a relay could pass its proof on')
    return {
      version: hello.version ?? UNBOUND_VERSION,
      epoch,
      session: this.id,
      token: this.token,
      slabSize: store.slabSize,
      totalSlabs: store.total,
      freeSlabs: this.#slabs.free,
      sessionTimeoutMs,
      lingerMs,
      limits: this.#host.bandwidth.enter(this),
      takeOver: this.#takeOver,
    }
  }

  /**
   * As {@link close}, but its client is told first: else it would call a server for a while that has its memory no more.
   * A client that does not hear is not waited for long.
   */
  async endFor(reason: string): Promise<void> {
    const control = this.#control
    if (!this.#closed && control !== undefined)
      await tellEnding((bytes) => control.request(bytes, { timeout: ENDING_TIMEOUT_MS }), reason).catch(
        () => {},
      )
    this.close(reason)
  }

  /** @param reason why, for the record */
  close(reason: string): void {
    this.#end(reason)
    const control = this.#control
    this.#control = undefined
    void control?.close()
    this.#host.ended(this)
  }

  /** Gives everything back but the control connection. Idempotent. */
  #end(reason: string): void {
    if (this.#closed) return
    this.#closed = true
    this.#linger.stop()
    // First who can reach the memory, then the keys, then the memory: the protection domain's children go before it.
    this.#data.close()
    this.#host.bandwidth.leave(this)
    const slabs = this.#slabs.releaseAll()
    this.#protectionDomain.close()
    this.#data.closeQueue()
    this.#host.record(this.actor, { event: 'session-ended', reason, slabs })
  }

  #serve(connection: ControlConnection): void {
    this.#control = connection
    this.#peer = connection.peerUri
    this.#lastHeard = performance.now()
    connection.handle((request) => this.#answer(connection, request.data))
    void connection.closed.then((reason) => {
      if (this.#control === connection) this.loseControl(reason?.message ?? 'the client left')
    })
  }

  #answer(connection: ControlConnection, bytes: Uint8Array): Promise<Uint8Array> {
    if (this.#control === connection) this.#lastHeard = performance.now()
    return answerRequest(this.#host, this, bytes, (request) => this.#dispatch(connection, request))
  }

  async #dispatch(
    connection: ControlConnection,
    request: control.Request,
  ): Promise<control.Response.$Properties> {
    this.#requireControl(connection)
    if (request.hello) throw new Refusal('EPROTO', 'a connection says hello once')
    if (request.proof) throw new Refusal('EPROTO', 'there is no challenge to answer')
    if (request.allocate) return { allocate: await this.#allocate(connection, request.allocate.count ?? 0) }
    if (request.free) return { free: this.#free((request.free.ids ?? []).map(Number)) }
    if (request.query) return { query: this.#host.query(this.#host.tenants.find(this.tenant)) }
    if (request.heartbeat) return { heartbeat: this.#beat(request.heartbeat) }
    if (request.list) return { list: this.#slabs.list(Number(request.list.after ?? 0)) }
    if (request.goodbye) {
      this.#end('the client said goodbye')
      return { goodbye: {} }
    }
    throw new Refusal('EPROTO', 'unknown request')
  }

  /**
   * What a connection asked for that the session has lost, or left behind when it was resumed, may come late: whoever
   * has the session now may use the slab that it gives back. @throws Refusal ECANCELED
   */
  #requireControl(connection: ControlConnection): void {
    if (this.#closed) throw new Refusal('ECANCELED', 'the session has ended')
    if (this.#control !== connection)
      throw new Refusal('ECANCELED', 'this is not the connection of the session any more')
  }

  #beat({ bytes, operations }: control.Heartbeat.$Properties): control.HeartbeatReply.$Properties {
    const moved = { bytes: Number(bytes ?? 0), operations: Number(operations ?? 0) }
    const limits = this.#host.bandwidth.report(this, moved)
    return { epoch: this.#host.epoch, freeSlabs: this.#slabs.free, limits }
  }

  async #allocate(connection: ControlConnection, count: number): Promise<control.AllocateReply.$Properties> {
    const slabs = await this.#slabs.allocate(count, {
      isOver: () => this.#closed,
      require: () => this.#requireControl(connection),
    })
    this.#host.record(this.actor, { event: 'slabs-allocated', slabs: count, held: this.#slabs.size })
    return { slabs }
  }

  #free(ids: number[]): control.FreeReply.$Properties {
    const freed = this.#slabs.release(ids)
    this.#host.record(this.actor, { event: 'slabs-freed', slabs: freed, held: this.#slabs.size })
    return { freed }
  }

  async #askClient(bytes: Uint8Array): Promise<Uint8Array> {
    if (this.#control === undefined) throw new Refusal('ENOTCONN', 'the client is gone')
    return this.#control.request(bytes, { timeout: CLIENT_TIMEOUT_MS })
  }
}

/** As it calls itself. */
function nameOf({ hello }: ProvenClient): string {
  return printable(hello.client ?? '').slice(0, 256) || 'unnamed client'
}
