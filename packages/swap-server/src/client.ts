import { RingConnection } from '@rdmakit/ring-transport'
import {
  ConnectionId,
  type Context,
  deferred,
  type ProtectionDomain,
  type QueuePair,
  type QueuePairOptions,
} from '@rdmakit/verbs'
import { Proving } from './authentication.js'
import type { ControlConnection } from './control-connection.js'
import {
  control,
  dataConnectionData,
  MAX_LISTED_SLABS,
  MAX_SLABS_PER_REQUEST,
  PROTOCOL_VERSION,
} from './protocol.js'
import type { Key } from './secret-file.js'
import { answerServer, MOVES_NOTHING, type ServerRequestHandler } from './server-requests.js'

/** A slab of a server's memory, as one-sided operations name it. */
export interface RemoteSlab {
  readonly id: number
  readonly address: bigint
  readonly remoteKey: number
  /** bytes */
  readonly length: number
}

/** The server refused a request; `code` is an errno name, e.g. `ENOSPC`. */
export class SwapServerError extends Error {
  override readonly name = 'SwapServerError'
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message)
  }
}

export interface SessionOptions {
  /** who we are, for the server's log */
  readonly client?: string
  /** whose memory we take, default `default` */
  readonly tenant?: string
  /**
   * What proves it. A server that does not prove to have it too is refused. A function is asked for each
   * session, so that a key can be exchanged while the program runs. Default: none.
   */
  readonly key?: Key | (() => Key)
  /** milliseconds between heartbeats, default 1000 */
  readonly heartbeatInterval?: number
  /** milliseconds without an answer after which the server counts as lost, default 3000 */
  readonly heartbeatTimeout?: number
  /**
   * milliseconds that the session, with its slabs, should outlive this process or the connection, so that
   * {@link SwapServerSession.resume} finds it; the server may grant less; default 0
   */
  readonly linger?: number
  readonly signal?: AbortSignal
}

/** What this end has moved to and from a server since the session was opened; it never falls. */
export interface SessionUse {
  readonly bytes: number
  readonly operations: number
}

/** Per second; 0: no limit. */
export interface SessionLimits {
  readonly bytes: number
  readonly operations: number
}

/** What names a session to {@link SwapServerSession.resume}. Keep it as secret as the slabs' contents. */
export interface SessionIdentity {
  /** of the server: another one has other, empty memory */
  readonly epoch: string
  readonly session: number
  readonly token: Uint8Array
}

/** Pinning a slab takes the server about 10 ms of a fast machine and a second of an emulated one. */
const ALLOCATE_TIMEOUT_MS = 60_000
const REQUEST_TIMEOUT_MS = 5_000
const GOODBYE_TIMEOUT_MS = 2_000

/** A client's session with a swap-server: allocate slabs, open data connections, hear of its loss. */
export class SwapServerSession {
  readonly uri: string
  readonly epoch: string
  /** bytes */
  readonly slabSize: number
  readonly totalSlabs: number
  /** milliseconds that the session outlives the connection, as the server granted */
  readonly linger: number
  /** settles once with the reason why the session ended; never rejects */
  readonly lost: Promise<string>
  readonly #control: ControlConnection
  readonly #session: number
  readonly #token: Uint8Array
  readonly #lost = deferred<string>()
  readonly #data = new Set<ConnectionId>()
  #heartbeat: NodeJS.Timeout | undefined
  #closed = false
  #isLost = false
  #freeSlabs: number
  #limits: SessionLimits
  #use: () => SessionUse = () => ({ bytes: 0, operations: 0 })
  #obey: (limits: SessionLimits) => void = () => {}
  /** slabs that the server wants back: what is given back there cannot be had again */
  readonly #wanted = new Set<number>()

  private constructor(uri: string, connection: ControlConnection, hello: control.HelloReply.$Properties) {
    this.uri = uri
    this.#control = connection
    this.epoch = hello.epoch ?? ''
    this.slabSize = Number(hello.slabSize)
    this.totalSlabs = Number(hello.totalSlabs)
    this.#freeSlabs = Number(hello.freeSlabs)
    this.#limits = limitsOf(hello.limits)
    this.linger = hello.lingerMs ?? 0
    this.#session = Number(hello.session ?? 0)
    this.#token = hello.token ?? new Uint8Array()
    this.lost = this.#lost.promise
    this.onServerRequest(MOVES_NOTHING)
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
   * Takes up a session that lingers, or that another process still has: it has the same slabs, with the same
   * keys. The old process's data connections are gone when this resolves, and what it had posted has landed
   * or never will.
   * @throws SwapServerError ENOENT: the session has ended, or the server was restarted (its memory is empty then);
   *   VerbsError when no address answers
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
        return await SwapServerSession.#openOne(uri, identity, options)
      } catch (reason) {
        options.signal?.throwIfAborted()
        failure = reason
      }
    }
    throw failure
  }

  static async #openOne(
    uri: string,
    identity: SessionIdentity | undefined,
    options: SessionOptions,
  ): Promise<SwapServerSession> {
    const connection = await RingConnection.connect(
      uri,
      options.signal === undefined ? {} : { signal: options.signal },
    )
    return SwapServerSession.over(uri, connection, identity, options)
  }

  /** @internal a session over a connection to a server at `uri`; the connection ends with it, or without it */
  static async over(
    uri: string,
    connection: ControlConnection,
    identity: SessionIdentity | undefined,
    options: SessionOptions,
  ): Promise<SwapServerSession> {
    try {
      const hello = await greet(connection, identity, options)
      if (identity !== undefined && (hello.resumed !== true || hello.epoch !== identity.epoch))
        throw new SwapServerError('ENOENT', 'the server was restarted and its memory is empty')
      const session = new SwapServerSession(uri, connection, hello)
      session.#startHeartbeat(options.heartbeatInterval ?? 1_000, options.heartbeatTimeout ?? 3_000)
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
    return this.#control.context
  }

  /**
   * Allocates `count` zeroed slabs.
   * @throws SwapServerError ENOSPC when the server has fewer
   */
  async allocate(count: number): Promise<RemoteSlab[]> {
    const slabs: RemoteSlab[] = []
    while (slabs.length < count) {
      const wanted = Math.min(count - slabs.length, MAX_SLABS_PER_REQUEST)
      const { allocate } = await this.#ask({ allocate: { count: wanted } }, ALLOCATE_TIMEOUT_MS)
      const received = allocate?.slabs ?? []
      if (received.length !== wanted)
        throw new SwapServerError('EPROTO', `the server gave ${received.length} slabs instead of ${wanted}`)
      for (const slab of received) slabs.push(remoteSlab(slab, this.slabSize))
      this.#freeSlabs = Math.max(0, this.#freeSlabs - received.length)
    }
    return slabs
  }

  /** Gives slabs back. Nothing may be in flight to them. */
  async free(slabs: readonly RemoteSlab[]): Promise<void> {
    if (slabs.length === 0) return
    await this.#ask({ free: { ids: slabs.map(({ id }) => id) } })
    for (const { id } of slabs) if (!this.#wanted.delete(id)) this.#freeSlabs++
  }

  /**
   * The server does not see one-sided traffic: it is told with each heartbeat how much there was, and says how much
   * there may be.
   * @param obey called at once, and whenever the limits change
   */
  meter(use: () => SessionUse, obey: (limits: SessionLimits) => void): void {
    this.#use = use
    this.#obey = obey
    obey(this.#limits)
  }

  /** Who answers what the server asks; before the first call nothing can be moved. */
  onServerRequest(handler: ServerRequestHandler): void {
    const marking: ServerRequestHandler = {
      activity: (ids) => handler.activity(ids),
      reclaim: (ids) => {
        // It lends nothing while it wants memory back; the next heartbeat says what is true then.
        this.#freeSlabs = 0
        const accepted = handler.reclaim(ids)
        for (const id of accepted) this.#wanted.add(id)
        return accepted
      },
    }
    this.#control.handle((request) => answerServer(request.copy(), marking))
  }

  /** The session's slabs, ascending by id: what a client that has resumed it finds there. */
  async list(): Promise<RemoteSlab[]> {
    const slabs: RemoteSlab[] = []
    for (;;) {
      const { list } = await this.#ask({ list: { after: slabs.at(-1)?.id ?? 0 } })
      const page = (list?.slabs ?? []).map((slab) => remoteSlab(slab, this.slabSize))
      for (const slab of page) {
        if (slab.id <= (slabs.at(-1)?.id ?? 0))
          throw new SwapServerError('EPROTO', 'the server listed slabs out of order')
        slabs.push(slab)
      }
      if (page.length < MAX_LISTED_SLABS) return slabs
    }
  }

  async query(): Promise<control.QueryReply.$Properties> {
    const { query } = await this.#ask({ query: {} })
    if (!query) throw new SwapServerError('EPROTO', 'the server did not answer the query')
    return query
  }

  /** Opens a queue pair on which this session's slabs can be read and written. */
  async connectData(protectionDomain: ProtectionDomain, options: QueuePairOptions): Promise<QueuePair> {
    const id = await ConnectionId.resolve(this.uri)
    try {
      const queuePair = id.createQueuePair(protectionDomain, options)
      await id.connect({ privateData: dataConnectionData(this.#token) })
      this.#data.add(id)
      void id.disconnected.then((reason) => {
        this.#data.delete(id)
        if (!this.#closed) this.#lose(reason?.message ?? 'the server closed a data connection')
      })
      return queuePair
    } catch (failure) {
      id.close()
      throw failure
    }
  }

  /**
   * Ends the session; the server frees its slabs, at once if it can be told, else when it has lingered.
   * Idempotent.
   */
  async close(): Promise<void> {
    if (this.#closed) return
    clearInterval(this.#heartbeat)
    this.#closed = true
    if (this.linger > 0 && !this.#isLost) {
      // A server that does not answer frees them later.
      await this.#ask({ goodbye: {} }, GOODBYE_TIMEOUT_MS).catch(() => {})
    }
    await this.#disconnect('the session was closed')
  }

  /** Ends the connections and leaves the session, with its slabs, to linger for {@link resume}. Idempotent. */
  async leave(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#heartbeat)
    await this.#disconnect('the session was left')
  }

  async #disconnect(reason: string): Promise<void> {
    for (const id of [...this.#data]) {
      id.disconnect()
      id.close()
    }
    await this.#control.close()
    this.#lost.resolve(reason)
  }

  #ask(request: control.Request.$Properties, timeout = REQUEST_TIMEOUT_MS): Promise<control.Response> {
    return ask(this.#control, request, timeout)
  }

  #limit(limits: SessionLimits): void {
    const { bytes, operations } = this.#limits
    if (this.#closed || (limits.bytes === bytes && limits.operations === operations)) return
    this.#limits = limits
    this.#obey(limits)
  }

  #lose(reason: string): void {
    this.#isLost = true
    clearInterval(this.#heartbeat)
    this.#lost.resolve(reason)
  }

  #startHeartbeat(interval: number, timeout: number): void {
    let waiting = false
    this.#heartbeat = setInterval(async () => {
      if (waiting) return
      waiting = true
      try {
        const { heartbeat } = await this.#ask({ heartbeat: this.#use() }, timeout)
        this.#freeSlabs = Number(heartbeat?.freeSlabs ?? this.#freeSlabs)
        this.#limit(limitsOf(heartbeat?.limits))
        if (heartbeat?.epoch !== this.epoch) this.#lose('the server was restarted and its memory is empty')
      } catch (failure) {
        if (!this.#closed) this.#lose(`no heartbeat: ${(failure as Error).message}`)
      } finally {
        waiting = false
      }
    }, interval)
    this.#heartbeat.unref()
  }
}

/**
 * Hello, and with a key Challenge and Proof.
 * @throws SwapServerError EACCES: one of the two ends does not have the other's key
 */
async function greet(
  connection: ControlConnection,
  identity: SessionIdentity | undefined,
  { client, linger = 0, tenant = '', key }: SessionOptions,
): Promise<control.HelloReply.$Properties> {
  const proving = key === undefined ? undefined : new Proving(tenant, typeof key === 'function' ? key() : key)
  const hello = {
    version: PROTOCOL_VERSION,
    client: client ?? `pid ${process.pid}`,
    tenant,
    lingerMs: linger,
    ...(identity && { resume: { session: identity.session, token: identity.token } }),
  }
  let response = await ask(connection, { hello: { ...hello, ...proving?.introduction } }, REQUEST_TIMEOUT_MS)
  if (response.challenge) {
    const proof = proving?.answer(response.challenge, identity?.session ?? 0)
    if (proof === undefined) throw new SwapServerError('EPROTO', 'the server sent a challenge that is none')
    response = await ask(connection, { proof }, REQUEST_TIMEOUT_MS)
  }
  const reply = response.hello
  if (!reply) throw new SwapServerError('EPROTO', 'the server did not answer hello')
  if (proving !== undefined && !proving.accepts(reply))
    throw new SwapServerError(
      'EACCES',
      'the server does not prove to have the key of --key-file: it is another server, or has no --tenants with keys',
    )
  return reply
}

async function ask(
  connection: ControlConnection,
  request: control.Request.$Properties,
  timeout: number,
): Promise<control.Response> {
  const bytes = await connection.request(control.Request.encode(request).finish(), { timeout })
  const response = control.Response.decode(bytes)
  if (response.failure)
    throw new SwapServerError(response.failure.code ?? 'EIO', response.failure.message ?? 'no reason given')
  return response
}

/** A server that speaks nonsense of limits sets none. */
function limitsOf(limits: control.Limits.$Properties | null | undefined): SessionLimits {
  const limit = (value: unknown) => {
    const number = Number(value ?? 0)
    return Number.isSafeInteger(number) && number > 0 ? number : 0
  }
  return { bytes: limit(limits?.bytesPerSecond), operations: limit(limits?.operationsPerSecond) }
}

/** Checks what the server sent before anything is written there. */
function remoteSlab(slab: control.Slab.$Properties, slabSize: number): RemoteSlab {
  const { id, address, rkey, length } = slab
  if (Number(length) !== slabSize || rkey == null || address == null)
    throw new SwapServerError('EPROTO', `the server described slab ${id} wrongly`)
  return { id: Number(id), address: BigInt(address), remoteKey: rkey, length: slabSize }
}
