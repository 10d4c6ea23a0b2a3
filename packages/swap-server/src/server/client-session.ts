import { randomBytes } from 'node:crypto'
import { printable } from '@rdmakit/operator-kit'
import type { ConnectionRequest, Context, ProtectionDomain } from '@rdmakit/verbs'
import type { Logger } from 'pino'
import { type Admission, Greeting } from '../protocol/authentication.js'
import type { ControlConnection } from '../protocol/control-connection.js'
import {
  control,
  MAX_LISTED_SLABS,
  MAX_SLABS_PER_REQUEST,
  TOKEN_BYTES,
  UNBOUND_VERSION,
} from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { askActivity, askReclaim, tellEnding } from '../protocol/server-requests.js'
import {
  compareTakeOvers,
  judgeClaim,
  NO_TAKE_OVER,
  type TakeOver,
  takeOverOf,
} from '../protocol/take-over-number.js'
import type { Actor, AuditEvent } from './audit-log.js'
import { DataConnections } from './data-connections.js'
import { drawSessionId, Linger } from './linger-timer.js'
import type { Lending } from './memory/lending.js'
import type { SlabOwner } from './memory/reclaim.js'
import { OutOfSlabsError, type Slab, type SlabStore } from './memory/slab-store.js'
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
  /** Its client has shown who it is. */
  proved(session: Session): void
  /** A new session takes a place. @throws Refusal when there is none for it */
  greeted(session: Session, tenant: Tenant): void
  /** The session that Resume names, if its token is right. */
  named(id: number, token: Uint8Array): Session | undefined
  /** A session may linger: there is room for one more of its tenant's that does. */
  mayLinger(session: Session): boolean
  /** A session may have one more data connection than it has had. */
  mayConnect(session: Session): boolean
  /** The session is over, and what it had is free. */
  ended(session: Session): void
}

/** A client that does not answer its server for so long is asked again later. */
const CLIENT_TIMEOUT_MS = 5_000

/** So long a session that ends waits for its client to hear of it. */
const ENDING_TIMEOUT_MS = 1_000

/**
 * One client: its control connection, its protection domain, its slabs and its data connections.
 * When the control connection ends, everything of the client ends with it, unless it was granted to linger:
 * then another control connection may resume the session until its time is up.
 */
export class Session implements SlabOwner {
  readonly id = drawSessionId()
  readonly token = randomBytes(TOKEN_BYTES)
  readonly context: Context
  readonly #host: SessionHost
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs = new Map<number, Slab>()
  readonly #data: DataConnections
  readonly #linger = new Linger()
  readonly #greeting: Greeting
  readonly #opened = Date.now()
  /** undefined while the session lingers, and after it was handed to the session that it resumed */
  #control: ControlConnection | undefined
  /** kept, for the connection that told it may be closed when it is asked for */
  #peer = ''
  /** that an answer may be under way to, which says why there is no session */
  #refused: ControlConnection | undefined
  #admission: Admission | undefined
  /** of the process that has it, or had it last */
  #takeOver = NO_TAKE_OVER
  #closed = false
  #lastHeard = performance.now()
  #client = 'a client that has not said who it is'
  /** whom it says to be, until it has shown it */
  #claims: Actor | undefined

  constructor(host: SessionHost, connection: ControlConnection) {
    this.#host = host
    this.context = connection.context
    this.#protectionDomain = this.context.allocateProtectionDomain()
    this.#data = new DataConnections(this.#protectionDomain)
    this.#greeting = new Greeting(host.tenants, connection.channelBinding)
    this.#serve(connection)
  }

  get client(): string {
    return this.#client
  }

  /** Whose memory it takes; undefined until it has shown who it is. */
  get tenant(): string | undefined {
    return this.#admission?.tenant.name
  }

  /** Who it is, for the record. */
  get actor(): Actor {
    return {
      tenant: this.tenant,
      keyId: this.#admission?.keyId,
      client: this.#client,
      peer: this.#peer,
    }
  }

  get status(): control.SessionStatus.$Properties {
    return {
      client: this.#client,
      tenant: this.tenant ?? '',
      peer: this.#peer,
      slabs: this.#slabs.size,
      dataConnections: this.#data.size,
      ageMs: Date.now() - this.#opened,
      lingering: this.lingering,
    }
  }

  get present(): boolean {
    return !this.#closed && this.#control !== undefined
  }

  get opportunistic(): boolean {
    return this.#host.tenants.find(this.tenant ?? '')?.class === 'opportunistic'
  }

  get slabIds(): Iterable<number> {
    return this.#slabs.keys()
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

  /** Goes on with another control connection, behind {@link endData}. */
  resume(connection: ControlConnection, admission: Admission): control.HelloReply.$Properties {
    this.#linger.stop()
    const old = this.#control
    this.#serve(connection)
    void old?.close()
    return { ...this.#welcome(admission, 'session-resumed'), resumed: true }
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
    const closed = control?.close()
    // One that has not shown who it is has its place at the doorstep until its connection is gone, too.
    if (this.#admission === undefined && closed !== undefined) {
      this.#refused = control
      void closed.finally(() => this.#host.ended(this))
    } else this.#host.ended(this)
  }

  /** As {@link close}, of one that has not shown who it is: its connection is broken, whatever is on its way. */
  turnOut(reason: string): void {
    const control = this.#control ?? this.#refused
    this.#control = undefined
    this.#end(reason)
    void control?.close({ drain: false })
    this.#host.ended(this)
  }

  /** Gives everything back but the control connection. Idempotent. */
  #end(reason: string): void {
    if (this.#closed) return
    this.#closed = true
    this.#linger.stop()
    // First who can reach the memory, then the keys, then the memory: the protection domain's children go before it.
    this.#data.close()
    const slabs = [...this.#slabs.values()]
    this.#slabs.clear()
    this.#host.bandwidth.leave(this)
    this.#release(slabs)
    this.#protectionDomain.close()
    this.#data.closeQueue()
    if (this.#admission !== undefined)
      this.#host.record(this.actor, { event: 'session-ended', reason, slabs: slabs.length })
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

  async #answer(connection: ControlConnection, bytes: Uint8Array): Promise<Uint8Array> {
    if (this.#control === connection) this.#lastHeard = performance.now()
    return control.Response.encode(await this.#respond(connection, bytes)).finish()
  }

  async #respond(connection: ControlConnection, bytes: Uint8Array): Promise<control.Response.$Properties> {
    let kind = 'unknown'
    const started = performance.now()
    try {
      const request = decode(bytes)
      kind = request.body ?? kind
      return await this.#dispatch(connection, request, bytes)
    } catch (failure) {
      const { code: given, message } = failure as { code?: unknown; message: string }
      const code = typeof given === 'string' ? given : 'EIO'
      if (failure instanceof Refusal || failure instanceof OutOfSlabsError)
        this.#host.record(this.actor, {
          event: 'refused',
          request: kind,
          code,
          reason: message,
          claims: this.#claims,
        })
      else this.#host.log.error({ err: failure, client: this.#client }, 'control request failed')
      // One try: it ends when the answer is on its way.
      if (this.#admission === undefined) setImmediate(() => this.close(message))
      const mac = failure instanceof Refusal ? failure.mac : undefined
      return { failure: { code, message, ...(mac === undefined ? {} : { mac }) } }
    } finally {
      this.#host.answered(kind, (performance.now() - started) / 1000)
    }
  }

  async #dispatch(
    connection: ControlConnection,
    request: control.Request,
    bytes: Uint8Array,
  ): Promise<control.Response.$Properties> {
    this.#requireControl(connection)
    if (request.hello) return this.#greet(connection, this.#hear(request.hello, bytes))
    if (request.proof) return this.#greet(connection, this.#greeting.proof(request.proof))
    if (this.#admission === undefined) throw new Refusal('EPROTO', 'a session starts with hello')
    if (request.allocate) return { allocate: await this.#allocate(connection, request.allocate.count ?? 0) }
    if (request.free) return { free: this.#free((request.free.ids ?? []).map(Number)) }
    if (request.query)
      return { query: this.#host.query(this.#host.tenants.find(this.#admission.tenant.name)) }
    if (request.heartbeat) return { heartbeat: this.#beat(request.heartbeat) }
    if (request.list) return { list: this.#list(Number(request.list.after ?? 0)) }
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

  #hear(hello: control.Hello.$Properties, request: Uint8Array): ReturnType<Greeting['hello']> {
    if (this.#admission === undefined)
      this.#claims = {
        tenant: printable(hello.tenant ?? '').slice(0, 64),
        keyId: printable(hello.keyId ?? '').slice(0, 64),
        client: printable(hello.client ?? '').slice(0, 256),
      }
    return this.#greeting.hello(hello, request)
  }

  /** At once where that is possible: what the client asks for behind it is answered behind it. */
  #greet(
    connection: ControlConnection,
    step: ReturnType<Greeting['hello']>,
  ): control.Response.$Properties | Promise<control.Response.$Properties> {
    if ('challenge' in step) return { challenge: step.challenge }
    // What waits for nothing is done now, and a refusal behind that is as one at once.
    const refuse = (failure: unknown) => {
      throw failure instanceof Refusal && step.hello.resume != null
        ? new Refusal(failure.code, failure.message, step.proveRefusal(failure.code))
        : failure
    }
    try {
      const answer = this.#enter(connection, step)
      return answer instanceof Promise ? answer.catch(refuse) : answer
    } catch (failure) {
      return refuse(failure)
    }
  }

  #enter(
    connection: ControlConnection,
    step: Admission,
  ): control.Response.$Properties | Promise<control.Response.$Properties> {
    const { resume } = step.hello
    this.#host.proved(this)
    const takeOver = takeOverOf(step.hello.takeOver)
    if (takeOver === undefined) throw new Refusal('EPROTO', 'the number of the take-over is none')
    if (resume == null) {
      this.#host.greeted(this, step.tenant)
      this.#takeOver = takeOver
      return step.answer(this.#welcome(step, 'session-opened'))
    }
    const named = this.#host.named(Number(resume.session ?? 0), resume.token ?? new Uint8Array())
    const gone = () =>
      new Refusal('ENOENT', 'there is no such session: it ended, or the server was restarted')
    if (named === undefined || named.#closed) throw gone()
    // Not ENOENT: a client with the wrong key file would take its memory for lost.
    if (named.tenant !== step.tenant.name) throw new Refusal('EACCES', 'the session is of another tenant')
    if (named.context !== this.context)
      throw new Refusal(
        'EXDEV',
        `the session is on the device ${named.context.deviceName}; connect to that one`,
      )
    // Before anything of who has it is ended, and of those that want it at once the highest stays.
    const claim = () => named.#claim(takeOver, step.hello)
    claim()
    const goOn = () => {
      this.#requireControl(connection)
      if (named.#closed) throw gone()
      claim()
      // What has brought the connection here is not needed any more.
      this.#control = undefined
      this.close('it went on with another session')
      return step.answer(named.resume(connection, step))
    }
    return named.endData()?.then(goOn) ?? goOn()
  }

  /** @throws Refusal ESTALE, EBUSY; and whoever has the session keeps it */
  #claim(takeOver: TakeOver, hello: control.Hello.$Properties): void {
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

  #welcome(
    admission: Admission,
    event: 'session-opened' | 'session-resumed',
  ): control.HelloReply.$Properties {
    const { hello } = admission
    this.#admission = admission
    this.#claims = undefined
    this.#client = printable(hello.client ?? '').slice(0, 256) || 'unnamed client'
    const { store, epoch, sessionTimeoutMs, maxLingerMs } = this.#host
    const lingerMs = this.#linger.grant(hello.lingerMs ?? 0, maxLingerMs)
    this.#host.record(this.actor, { event })
    if (admission.keyId !== undefined && hello.version === UNBOUND_VERSION)
      this.#host.log.warn(
        { client: this.#client },
        'a client of an older version, whose proof a relay could pass on',
      )
    return {
      version: hello.version ?? UNBOUND_VERSION,
      epoch,
      session: this.id,
      token: this.token,
      slabSize: store.slabSize,
      totalSlabs: store.total,
      freeSlabs: this.#freeSlabs,
      sessionTimeoutMs,
      lingerMs,
      limits: this.#host.bandwidth.enter(this),
      takeOver: this.#takeOver,
    }
  }

  #beat({ bytes, operations }: control.Heartbeat.$Properties): control.HeartbeatReply.$Properties {
    const moved = { bytes: Number(bytes ?? 0), operations: Number(operations ?? 0) }
    const limits = this.#host.bandwidth.report(this, moved)
    return { epoch: this.#host.epoch, freeSlabs: this.#freeSlabs, limits }
  }

  #list(after: number): control.ListReply.$Properties {
    const slabs = [...this.#slabs.values()]
      .filter(({ id }) => id > after)
      .sort((a, b) => a.id - b.id)
      .slice(0, MAX_LISTED_SLABS)
    return { slabs: slabs.map(described) }
  }

  async #allocate(connection: ControlConnection, count: number): Promise<control.AllocateReply.$Properties> {
    if (count < 1 || count > MAX_SLABS_PER_REQUEST)
      throw new Refusal('EINVAL', `allocate takes 1 to ${MAX_SLABS_PER_REQUEST} slabs, not ${count}`)
    const { lending, store } = this.#host
    let slabs: Slab[]
    try {
      slabs = await lending.lend(this.#borrower, count, () => store.allocate(this.#protectionDomain, count))
    } catch (failure) {
      // Its protection domain is closed then, which is no failure of the server's.
      throw this.#closed ? new Refusal('ECANCELED', 'the session has ended') : failure
    }
    try {
      this.#requireControl(connection)
    } catch (refusal) {
      // The client left while its memory was being pinned: nobody hears which slabs these are.
      this.#release(slabs)
      throw refusal
    }
    for (const slab of slabs) this.#slabs.set(slab.id, slab)
    this.#host.record(this.actor, { event: 'slabs-allocated', slabs: count, held: this.#slabs.size })
    return { slabs: slabs.map(described) }
  }

  #free(ids: number[]): control.FreeReply.$Properties {
    const slabs = new Set(
      ids.map((id) => {
        const slab = this.#slabs.get(id)
        if (slab === undefined) throw new Refusal('EINVAL', `slab ${id} is not of this session`)
        return slab
      }),
    )
    for (const id of ids) this.#slabs.delete(id)
    this.#release([...slabs])
    this.#host.record(this.actor, { event: 'slabs-freed', slabs: slabs.size, held: this.#slabs.size })
    return { freed: slabs.size }
  }

  /** Its tenant as the file says now; one that is not in it any more gets nothing more. */
  get #borrower() {
    const name = this.tenant ?? ''
    return this.#host.tenants.find(name) ?? { name, quota: 0 }
  }

  get #freeSlabs(): number {
    return this.#host.lending.freeFor(this.#borrower)
  }

  #release(slabs: readonly Slab[]): void {
    this.#host.store.release(slabs)
    this.#host.lending.takeBack(
      this.tenant ?? '',
      slabs.map(({ id }) => id),
    )
  }

  async #askClient(bytes: Uint8Array): Promise<Uint8Array> {
    if (this.#control === undefined) throw new Refusal('ENOTCONN', 'the client is gone')
    return this.#control.request(bytes, { timeout: CLIENT_TIMEOUT_MS })
  }
}

function described({ id, region }: Slab): control.Slab.$Properties {
  return { id, address: Number(region.address), rkey: region.remoteKey, length: region.length }
}

function decode(bytes: Uint8Array): control.Request {
  try {
    return control.Request.decode(bytes)
  } catch {
    throw new Refusal('EPROTO', 'the request cannot be decoded')
  }
}
