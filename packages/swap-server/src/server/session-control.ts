import type { ControlConnection } from '../protocol/control-connection.js'
import type { control } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { askActivity, askReclaim, tellEnding } from '../protocol/server-requests.js'
import { type Asking, answerRequest, RequestWindow } from './control-request.js'
import type { SlabOwner } from './memory/reclaim.js'
import type { SessionHost } from './session-host.js'
import type { SessionSlabs } from './session-slabs.js'

/** A client that does not answer its server for this long is asked again later. */
const CLIENT_TIMEOUT_MS = 5_000

/** How long a session that ends waits for its client's answer. */
const ENDING_TIMEOUT_MS = 1_000

/** A session, as far as its control connection concerns it. */
interface Served extends Asking {
  readonly tenant: string
  /** Its control connection takes `after` bytes, where it took `before`. @returns false: it is too much */
  charge(before: number, after: number): boolean
  /** Gives everything back but the control connection. */
  end(reason: string): void
  /** The control connection is lost. */
  loseControl(reason: string): void
}

/** Handles the requests between the client of a session and its server, over its current control connection. */
export class SessionControl implements SlabOwner {
  readonly #host: SessionHost
  readonly #session: Served
  readonly #slabs: SessionSlabs
  #connection: ControlConnection | undefined
  readonly #window = new RequestWindow()
  /** bytes that its connection takes of its tenant's */
  #memory = 0
  #over = false
  #lastHeard = performance.now()

  constructor(host: SessionHost, session: Served, slabs: SessionSlabs) {
    this.#host = host
    this.#session = session
    this.#slabs = slabs
  }

  get client(): string {
    return this.#session.client
  }

  get opportunistic(): boolean {
    return this.#host.tenants.find(this.#session.tenant)?.class === 'opportunistic'
  }

  get slabIds(): Iterable<number> {
    return this.#slabs.ids
  }

  get present(): boolean {
    return !this.#over && this.#connection !== undefined
  }

  /** milliseconds since the client's last request */
  get silence(): number {
    return performance.now() - this.#lastHeard
  }

  /** For `milliseconds` this process did not run: no silence of the client's. */
  excuse(milliseconds: number): void {
    this.#lastHeard = Math.min(performance.now(), this.#lastHeard + milliseconds)
  }

  /**
   * Answers what comes from `connection` from now on, and breaks the one before: a client that does not close it could
   * have as many as it likes, each until it has been waited for long enough.
   */
  serve(connection: ControlConnection): void {
    const before = this.#connection
    this.#connection = connection
    this.#lastHeard = performance.now()
    this.#charge(connection.memory)
    connection.handle(({ data }) => {
      if (this.#connection === connection) this.#hear(connection)
      const turn = this.#window.turn()
      return turn === undefined ? this.#answer(connection, data) : this.#answerLater(connection, data, turn)
    })
    void connection.closed.then((reason) => {
      if (this.#connection === connection) this.#session.loseControl(reason?.message ?? 'the client left')
    })
    this.#host.lending.reclaim.resumed(this)
    void before?.close({ drain: false })
  }

  #answer(connection: ControlConnection, data: Uint8Array): Promise<Uint8Array> {
    return answerRequest(this.#host, this.#session, data, (request) => this.#dispatch(connection, request))
  }

  async #answerLater(
    connection: ControlConnection,
    data: Uint8Array,
    first: Promise<void>,
  ): Promise<Uint8Array> {
    for (let turn: Promise<void> | undefined = first; turn !== undefined; turn = this.#window.turn())
      await turn
    return await this.#answer(connection, data)
  }

  #hear(connection: ControlConnection): void {
    this.#lastHeard = performance.now()
    if (this.#charge(connection.memory)) return
    const { client, tenant, actor } = this.#session
    const reason = `the control connections of tenant "${tenant}" take more of the server's memory than they may`
    this.#host.log.warn({ client }, reason)
    this.#host.record(actor, { event: 'refused', request: 'connection', code: 'EUSERS', reason })
    void connection.close({ drain: false })
  }

  /** @returns false: it is too much */
  #charge(bytes: number): boolean {
    const before = this.#memory
    this.#memory = bytes
    return this.#session.charge(before, bytes)
  }

  /** The session is over, and no request is granted any more; the connection stays until {@link close}. */
  end(): void {
    this.#over = true
  }

  close(): void {
    const connection = this.#connection
    this.#connection = undefined
    this.#charge(0)
    void connection?.close()
  }

  activity(ids: readonly number[]): Promise<readonly number[]> {
    return askActivity((bytes) => this.#ask(bytes), ids)
  }

  reclaim(ids: readonly number[]): Promise<readonly number[]> {
    return askReclaim((bytes) => this.#ask(bytes), ids)
  }

  /** Tells the client, if there is one; whether it hears is not waited for long. */
  async tellEnding(reason: string): Promise<void> {
    if (this.present) await tellEnding((bytes) => this.#ask(bytes, ENDING_TIMEOUT_MS), reason).catch(() => {})
  }

  async #ask(bytes: Uint8Array, timeout = CLIENT_TIMEOUT_MS): Promise<Uint8Array> {
    if (this.#connection === undefined) throw new Refusal('ENOTCONN', 'the client is gone')
    return this.#connection.request(bytes, { timeout })
  }

  async #dispatch(
    connection: ControlConnection,
    request: control.Request,
  ): Promise<control.Response.$Properties> {
    this.#require(connection)
    if (request.hello) throw new Refusal('EPROTO', 'a connection says hello once')
    if (request.proof) throw new Refusal('EPROTO', 'there is no challenge to answer')
    if (request.allocate) return { allocate: await this.#allocate(connection, request.allocate.count ?? 0) }
    if (request.free) return { free: this.#free((request.free.ids ?? []).map(Number)) }
    if (request.query) return { query: this.#host.query(this.#host.tenants.find(this.#session.tenant)) }
    if (request.heartbeat) return { heartbeat: this.#beat(request.heartbeat) }
    if (request.list) return { list: this.#slabs.list(Number(request.list.after ?? 0)) }
    if (request.goodbye) {
      this.#session.end('the client said goodbye')
      return { goodbye: {} }
    }
    throw new Refusal('EPROTO', 'unknown request')
  }

  /**
   * A request may arrive late from a connection that the session has lost, or left when it was resumed: the
   * session's current client may be using the slab that the request gives back. @throws Refusal ECANCELED
   */
  #require(connection: ControlConnection): void {
    if (this.#over) throw new Refusal('ECANCELED', 'the session has ended')
    if (this.#connection !== connection)
      throw new Refusal('ECANCELED', 'this connection no longer belongs to the session')
  }

  #beat({ bytes, operations }: control.Heartbeat.$Properties): control.HeartbeatReply.$Properties {
    const moved = { bytes: Number(bytes ?? 0), operations: Number(operations ?? 0) }
    const limits = this.#host.bandwidth.report(this.#session, moved)
    return { epoch: this.#host.epoch, freeSlabs: this.#slabs.free, limits }
  }

  async #allocate(connection: ControlConnection, count: number): Promise<control.AllocateReply.$Properties> {
    const slabs = await this.#slabs.allocate(count, {
      isOver: () => this.#over,
      require: () => this.#require(connection),
    })
    this.#host.record(this.#session.actor, { event: 'slabs-allocated', slabs: count, held: this.#slabs.size })
    return { slabs }
  }

  #free(ids: number[]): control.FreeReply.$Properties {
    const freed = this.#slabs.release(ids)
    this.#host.record(this.#session.actor, { event: 'slabs-freed', slabs: freed, held: this.#slabs.size })
    return { freed }
  }
}
