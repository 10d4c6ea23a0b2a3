import {
  ConnectionId,
  type Context,
  type ProtectionDomain,
  type QueuePair,
  type QueuePairOptions,
} from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import {
  ALLOCATE_TIMEOUT_MS,
  type control,
  dataConnectionData,
  MAX_SLABS_PER_REQUEST,
} from '../protocol/messages.js'
import { answerServer, MOVES_NOTHING, type ServerRequestHandler } from '../protocol/server-requests.js'
import { NO_TAKE_OVER, type TakeOver } from '../protocol/take-over-number.js'
import { ask, connectControl, greet, REQUEST_TIMEOUT_MS } from './handshake.js'
import { Heartbeat, heartbeatInterval } from './heartbeat.js'
import {
  countOf,
  limitsOf,
  listSlabs,
  type RemoteSlab,
  type SessionLimits,
  SwapServerError,
  slabOf,
  type Welcome,
  welcomeOf,
} from './server-replies.js'
import { type ClientControlConnection, SessionConnections } from './session-connections.js'
import type { ListOptions, SessionIdentity, SessionOptions, SessionUse } from './session-options.js'

const GOODBYE_TIMEOUT_MS = 2_000

/**
 * A client's session with a swap-server: allocates slabs, opens data connections, reports its loss. Its connections keep
 * the event loop alive until they have ended, unless {@link unref} was called.
 */
export class SwapServerSession {
  readonly uri: string
  readonly epoch: string
  /** bytes */
  readonly slabSize: number
  readonly totalSlabs: number
  /** milliseconds that the session outlives the connection, as the server granted */
  readonly linger: number
  /** the server refuses its sessions to processes whose volume another process has taken over */
  readonly fences: boolean
  /** settles once with the reason why the session ended; never rejects */
  readonly lost: Promise<string>
  /** The server has announced that it ends the session and frees its memory: there is nothing to resume. */
  get gone(): boolean {
    return this.#gone
  }

  /** why it ended, undefined while it has not: what {@link lost} tells, at once */
  get over(): string | undefined {
    return this.#over
  }
  readonly #connections: SessionConnections
  readonly #session: number
  readonly #token: Uint8Array
  /** with which its data connections are made */
  readonly #takeOver: TakeOver
  readonly #lost = deferred<string>()
  #heartbeat: Heartbeat | undefined
  #handler: ServerRequestHandler = MOVES_NOTHING
  /** A server would take a refusal for the last word of one that does not know yet what it has there. */
  readonly #ready = deferred<void>()
  #closed = false
  #isLost = false
  #gone = false
  #over: string | undefined
  #freeSlabs: number
  /** requests that change it, and that the server may have counted already or not */
  #changing = 0
  #limits: SessionLimits
  #use: () => SessionUse = () => ({ bytes: 0, operations: 0 })
  #obey: (limits: SessionLimits) => void = () => {}
  /** of the slabs that it has; a server that lends one twice would have two pages in one place */
  #ids = new Set<number>()
  /** slabs that the server wants back: memory given back there cannot be allocated again */
  readonly #wanted = new Set<number>()

  private constructor(
    uri: string,
    connection: ClientControlConnection,
    welcome: Welcome,
    takeOver: TakeOver,
  ) {
    this.uri = uri
    this.#connections = new SessionConnections(connection)
    this.epoch = welcome.epoch
    this.slabSize = welcome.slabSize
    this.totalSlabs = welcome.totalSlabs
    this.#freeSlabs = welcome.freeSlabs
    this.#limits = welcome.limits
    this.linger = welcome.linger
    this.#session = welcome.session
    this.#token = welcome.token
    this.fences = welcome.fences
    // A server without numbers would not understand one.
    this.#takeOver = welcome.fences ? takeOver : NO_TAKE_OVER
    this.lost = this.#lost.promise
    if (!welcome.resumed) this.#ready.resolve()
    connection.handle(({ data }) => answerServer(data, this.#answers, this.#ready.promise))
    void connection.closed.then((reason) => this.#lose(reason?.message ?? 'the server closed the session'))
  }

  /**
   * Opens a session with the first of `uris` that answers: the addresses of one server.
   * @throws the last address's VerbsError when none does
   */
  static open(uris: readonly string[], options: SessionOptions = {}): Promise<SwapServerSession> {
    return SwapServerSession.#openAny(uris, undefined, options)
  }

  /**
   * Resumes a session that lingers, or that another process still has, with the same slabs and keys. When this resolves,
   * the old process's data connections are gone, and each request that it had posted has landed or never will.
   * @throws SwapServerError ENOENT: the session has ended, or the server was restarted (its memory is empty then);
   *   ESTALE: another process has taken the volume over (`takeOver`); EBUSY: a client has it (`unattended`); VerbsError
   *   when no address answers
   */
  static resume(
    uris: readonly string[],
    identity: SessionIdentity,
    options: SessionOptions = {},
  ): Promise<SwapServerSession> {
    return SwapServerSession.#openAny(uris, identity, options)
  }

  static async #openAny(
    uris: readonly string[],
    identity: SessionIdentity | undefined,
    options: SessionOptions,
  ): Promise<SwapServerSession> {
    let failure: unknown
    for (const uri of uris) {
      try {
        const connection = await connectControl(uri, identity, options)
        return await SwapServerSession.over(uri, connection, identity, options)
      } catch (reason) {
        options.signal?.throwIfAborted()
        // Another address is no other session.
        if (reason instanceof SwapServerError && reason.code === 'ESTALE') throw reason
        failure = reason
      }
    }
    throw failure
  }

  /** @internal a session over a connection to a server at `uri`; the connection ends with it, or without it */
  static async over(
    uri: string,
    connection: ClientControlConnection,
    identity: SessionIdentity | undefined,
    options: SessionOptions,
  ): Promise<SwapServerSession> {
    try {
      const hello = await greet(connection, identity, options)
      if (identity !== undefined && (hello.resumed !== true || hello.epoch !== identity.epoch))
        throw new SwapServerError('ENOENT', 'the server was restarted and its memory is empty')
      const welcome = welcomeOf(hello, identity !== undefined)
      const session = new SwapServerSession(uri, connection, welcome, options.takeOver ?? NO_TAKE_OVER)
      session.#startHeartbeat(options, heartbeatInterval(welcome.sessionTimeout))
      return session
    } catch (failure) {
      void connection.close()
      throw failure
    }
  }

  /** For {@link resume}, by this process or the next. */
  get identity(): SessionIdentity {
    return { epoch: this.epoch, session: this.#session, token: this.#token }
  }

  /** slabs that the server can still lend, as it said last: with hello and each heartbeat */
  get freeSlabs(): number {
    return this.#freeSlabs
  }

  /** The device that the session runs on; data connections use the same. */
  get context(): Context {
    return this.#connections.control.context
  }

  /**
   * Allocates all of `count` zeroed slabs, or none.
   * @param signal gives it up; a slab that the server allocates all the same stays the session's
   * @throws SwapServerError ENOSPC when the server has fewer; the signal's reason
   */
  async allocate(count: number, { signal }: Pick<ListOptions, 'signal'> = {}): Promise<RemoteSlab[]> {
    const slabs: RemoteSlab[] = []
    try {
      while (slabs.length < count) slabs.push(...(await this.#allocateSome(count - slabs.length, signal)))
    } catch (failure) {
      await this.free(slabs).catch(() => {})
      throw failure
    }
    return slabs
  }

  async #allocateSome(count: number, signal: AbortSignal | undefined): Promise<RemoteSlab[]> {
    const wanted = Math.min(count, MAX_SLABS_PER_REQUEST)
    const { allocate } = await this.#change({ allocate: { count: wanted } }, ALLOCATE_TIMEOUT_MS, signal)
    const slabs = (allocate?.slabs ?? []).map((slab) => slabOf(slab, this.slabSize))
    if (slabs.length !== wanted)
      throw new SwapServerError('EPROTO', `the server gave ${slabs.length} slabs instead of ${wanted}`)
    if (new Set(slabs.map(({ id }) => id)).size < wanted || slabs.some(({ id }) => this.#ids.has(id)))
      throw new SwapServerError('EPROTO', 'the server lends the same slab twice')
    for (const { id } of slabs) this.#ids.add(id)
    this.#freeSlabs = Math.max(0, this.#freeSlabs - wanted)
    return slabs
  }

  /** Gives slabs back. Nothing may be in flight to them. */
  async free(slabs: readonly RemoteSlab[]): Promise<void> {
    if (slabs.length === 0) return
    await this.#change({ free: { ids: slabs.map(({ id }) => id) } })
    for (const { id } of slabs) {
      this.#ids.delete(id)
      if (!this.#wanted.delete(id)) this.#freeSlabs++
    }
  }

  /**
   * Reports traffic and obeys limits: the server does not see one-sided traffic, so each heartbeat reports it, and the
   * answer carries the limits.
   * @param obey called at once, and whenever the limits change
   */
  meter(use: () => SessionUse, obey: (limits: SessionLimits) => void): void {
    this.#use = use
    this.#obey = obey
    obey(this.#limits)
  }

  /** Sets the handler of the server's requests. Until then a session that was resumed lets it wait; another moves nothing. */
  onServerRequest(handler: ServerRequestHandler): void {
    this.#handler = handler
    this.#ready.resolve()
  }

  readonly #answers: ServerRequestHandler = {
    activity: (ids) => this.#handler.activity(ids),
    reclaim: (ids) => {
      // It lends nothing while it wants memory back; the next heartbeat has the current number.
      this.#freeSlabs = 0
      const accepted = this.#handler.reclaim(ids)
      for (const id of accepted) this.#wanted.add(id)
      return accepted
    },
    ending: (reason) => {
      this.#gone = true
      this.#lose(`the server has given up its memory: ${reason}`)
    },
  }

  /**
   * The session's slabs, ascending by id: what a client that has resumed it finds there.
   * @throws SwapServerError EPROTO: the server lists more than there can be, or out of order; VerbsError ETIMEDOUT: it does
   *   not answer one of the requests for 5 s; the signal's reason
   */
  async list({ most = this.totalSlabs, signal }: ListOptions = {}): Promise<RemoteSlab[]> {
    const limit = Math.min(most, this.totalSlabs)
    const ask = async (after: number) => (await this.#ask({ list: { after } })).list
    const slabs = await listSlabs(ask, this.slabSize, limit, signal)
    this.#ids = new Set(slabs.map(({ id }) => id))
    return slabs
  }

  async query(): Promise<control.QueryReply.$Properties> {
    const { query } = await this.#ask({ query: {} })
    if (!query) throw new SwapServerError('EPROTO', 'the server did not answer the query')
    return query
  }

  /**
   * Opens a queue pair on which this session's slabs can be read and written.
   * @throws SwapServerError ECANCELED: the session was closed or left meanwhile, or before; as ConnectionId's `resolve` and
   *   `connect`
   */
  async connectData(protectionDomain: ProtectionDomain, options: QueuePairOptions): Promise<QueuePair> {
    const { cancelled: signal } = this.#connections
    const id = await ConnectionId.resolve(this.uri, { signal })
    try {
      const queuePair = id.createQueuePair(protectionDomain, options)
      await id.connect({ privateData: dataConnectionData(this.#token, this.#takeOver), signal })
      signal.throwIfAborted()
      this.#connections.add(id, (reason) => {
        if (!this.#closed) this.#lose(reason?.message ?? 'the server closed a data connection')
      })
      return queuePair
    } catch (failure) {
      id.close()
      throw failure
    }
  }

  /** Keeps the event loop alive until the session has ended (the default): undoes {@link unref}. */
  ref(): this {
    this.#connections.referenced = true
    return this
  }

  /**
   * The session and its data connections no longer keep the program alive: if nothing else does, the program exits
   * without closing them. {@link close}, {@link leave} and a data connection that is being made still do.
   */
  unref(): this {
    this.#connections.referenced = false
    return this
  }

  /**
   * Ends the session; the server frees its slabs, at once if it can be reached, else after the linger time. Idempotent.
   */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#beginToEnd()
    if (this.linger > 0 && !this.#isLost) {
      // A server that does not answer frees them later.
      await this.#ask({ goodbye: {} }, GOODBYE_TIMEOUT_MS).catch(() => {})
    }
    await this.#connections.end()
    this.#end('the session was closed')
  }

  /** Ends the connections and leaves the session, with its slabs, to linger for {@link resume}. Idempotent. */
  async leave(): Promise<void> {
    if (this.#closed) return
    this.#beginToEnd()
    await this.#connections.end()
    this.#end('the session was left')
  }

  #beginToEnd(): void {
    this.#closed = true
    this.#ready.resolve()
    this.#heartbeat?.stop()
    this.#connections.cancel()
    // The waits that remain are short, and the owner's.
    this.#connections.control.ref()
  }

  #ask(request: control.Request.$Properties, timeout = REQUEST_TIMEOUT_MS, signal?: AbortSignal) {
    return ask(this.#connections.control, request, timeout, signal)
  }

  /** A request whose effect is counted here when it is answered, and not by an earlier heartbeat. */
  async #change(request: control.Request.$Properties, timeout?: number, signal?: AbortSignal) {
    this.#changing++
    try {
      return await this.#ask(request, timeout, signal)
    } finally {
      this.#changing--
    }
  }

  #limit(limits: SessionLimits): void {
    const { bytes, operations } = this.#limits
    if (this.#closed || (limits.bytes === bytes && limits.operations === operations)) return
    this.#limits = limits
    this.#obey(limits)
  }

  #lose(reason: string): void {
    this.#isLost = true
    this.#ready.resolve()
    this.#heartbeat?.stop()
    this.#end(reason)
  }

  #end(reason: string): void {
    this.#over ??= reason
    this.#lost.resolve(reason)
  }

  #startHeartbeat(options: SessionOptions, often: number): void {
    this.#heartbeat = new Heartbeat({
      interval: options.heartbeatInterval ?? often,
      timeout: options.heartbeatTimeout ?? 3_000,
      ask: async (patience) => {
        const { heartbeat } = await this.#ask({ heartbeat: this.#use() }, patience)
        if (this.#changing === 0) this.#freeSlabs = countOf(heartbeat?.freeSlabs) ?? this.#freeSlabs
        this.#limit(limitsOf(heartbeat?.limits))
        if (heartbeat?.epoch === this.epoch) return
        this.#gone = true
        this.#lose('the server was restarted and its memory is empty')
      },
      dead: (reason) => {
        if (!this.#closed) this.#lose(`no heartbeat: ${reason}`)
      },
    })
  }
}
