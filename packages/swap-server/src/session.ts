import { randomBytes } from 'node:crypto'
import type { RingConnection } from '@rdmakit/ring-transport'
import type {
  CompletionQueue,
  ConnectionId,
  ConnectionRequest,
  Context,
  ProtectionDomain,
} from '@rdmakit/verbs'
import type { Logger } from 'pino'
import { drawSessionId, Linger } from './lingering.js'
import {
  control,
  MAX_LISTED_SLABS,
  MAX_SLABS_PER_REQUEST,
  PROTOCOL_VERSION,
  TOKEN_BYTES,
} from './protocol.js'
import { OutOfSlabsError, type Slab, type SlabStore } from './slab-store.js'

/** What all sessions of a server share. */
export interface SessionHost {
  readonly epoch: string
  readonly store: SlabStore
  readonly sessionTimeoutMs: number
  readonly log: Logger
  readonly maxDataConnections: number
  /** milliseconds that a session may linger at most */
  readonly maxLingerMs: number
  query(): control.QueryReply.$Properties
  /** The session that Resume names, if its token is right. */
  named(id: number, token: Uint8Array): Session | undefined
  /** A session may linger: there is room for one more that does. */
  mayLinger(): boolean
  /** The session is over, and what it had is free. */
  ended(session: Session): void
}

/** A request that the session refuses; `code` and message go to the client. */
class Refusal extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message)
  }
}

/**
 * One client: its control connection, its protection domain, its slabs and its data connections.
 * When the control connection ends, everything of the client ends with it, unless it was granted to linger:
 * then another control connection may resume the session until its time is up.
 */
export class Session {
  readonly id = drawSessionId()
  readonly token = randomBytes(TOKEN_BYTES)
  readonly context: Context
  readonly #host: SessionHost
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs = new Map<number, Slab>()
  readonly #data = new Set<ConnectionId>()
  readonly #linger = new Linger()
  /** undefined while the session lingers, and after it was handed to the session that it resumed */
  #control: RingConnection | undefined
  #completionQueue: CompletionQueue | undefined
  #greeted = false
  #closed = false
  #lastHeard = Date.now()
  #client = 'a client that has not said hello'

  constructor(host: SessionHost, connection: RingConnection, context: Context) {
    this.#host = host
    this.context = context
    this.#protectionDomain = context.allocateProtectionDomain()
    this.#serve(connection)
  }

  get client(): string {
    return this.#client
  }

  /** milliseconds since the client's last request; 0 when nobody has the session */
  get silence(): number {
    return this.lingering ? 0 : Date.now() - this.#lastHeard
  }

  /** It has outlived its control connection and can be resumed. */
  get lingering(): boolean {
    return this.#linger.running
  }

  /** Takes a data connection: a queue pair in this session's protection domain that posts nothing. */
  async acceptData({ id }: ConnectionRequest): Promise<void> {
    if (this.#closed || id.context !== this.context || this.#data.size >= this.#host.maxDataConnections) {
      id.reject()
      return
    }
    this.#completionQueue ??= this.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(this.#protectionDomain, {
      sendQueue: this.#completionQueue,
      maxSend: 1,
      maxReceive: 1,
      maxInlineData: 0,
    })
    this.#data.add(id)
    void id.disconnected.then(() => {
      this.#data.delete(id)
      id.close()
    })
    await id.accept()
  }

  /** The control connection is lost: the session lingers, or ends. */
  loseControl(): void {
    const connection = this.#control
    this.#control = undefined
    void connection?.close()
    if (this.#closed || this.#linger.granted === 0 || !this.#host.mayLinger()) {
      this.close()
      return
    }
    this.#host.log.info({ client: this.#client, lingerMs: this.#linger.granted }, 'session lingers')
    this.#linger.start(() => {
      this.#host.log.warn({ client: this.#client }, 'nobody resumed the session')
      this.close()
    })
  }

  /**
   * Goes on with another control connection. What the old one's client had posted has landed when this
   * returns, or never will: its queue pairs are destroyed.
   */
  resume(connection: RingConnection, hello: control.Hello.$Properties): control.HelloReply.$Properties {
    this.#linger.stop()
    const old = this.#control
    this.#serve(connection)
    void old?.close()
    for (const id of [...this.#data]) id.close()
    this.#data.clear()
    return { ...this.#welcome(hello, 'session resumed'), resumed: true }
  }

  close(): void {
    this.#release()
    void this.#control?.close()
    this.#control = undefined
    this.#host.ended(this)
  }

  /** Gives everything back but the control connection. Idempotent. */
  #release(): void {
    if (this.#closed) return
    this.#closed = true
    this.#linger.stop()
    // The keys die before the memory is given back: the protection domain's children go first.
    const slabs = [...this.#slabs.values()]
    this.#slabs.clear()
    this.#host.store.release(slabs)
    this.#protectionDomain.close()
    this.#completionQueue?.close()
    if (this.#greeted) this.#host.log.info({ client: this.#client, slabs: slabs.length }, 'session ended')
  }

  #serve(connection: RingConnection): void {
    this.#control = connection
    this.#lastHeard = Date.now()
    connection.handle((request) => this.#answer(request.copy()))
    void connection.closed.then(() => {
      if (this.#control === connection) this.loseControl()
    })
  }

  async #answer(bytes: Uint8Array): Promise<Uint8Array> {
    this.#lastHeard = Date.now()
    return control.Response.encode(await this.#respond(bytes)).finish()
  }

  async #respond(bytes: Uint8Array): Promise<control.Response.$Properties> {
    try {
      return await this.#dispatch(decode(bytes))
    } catch (failure) {
      const { code, message } = failure as { code?: unknown; message: string }
      const known = failure instanceof Refusal || failure instanceof OutOfSlabsError
      if (!known) this.#host.log.error({ err: failure, client: this.#client }, 'control request failed')
      return { failure: { code: typeof code === 'string' ? code : 'EIO', message } }
    }
  }

  async #dispatch(request: control.Request): Promise<control.Response.$Properties> {
    if (request.hello) {
      // The connection was given up for its silence while this was on its way.
      if (this.#control === undefined) throw new Refusal('ETIMEDOUT', 'the client was silent for too long')
      return { hello: this.#hello(request.hello, this.#control) }
    }
    if (!this.#greeted) throw new Refusal('EPROTO', 'a session starts with hello')
    if (this.#closed) throw new Refusal('ESHUTDOWN', 'the session has ended')
    if (request.allocate) return { allocate: await this.#allocate(request.allocate.count ?? 0) }
    if (request.free) return { free: this.#free((request.free.ids ?? []).map(Number)) }
    if (request.query) return { query: this.#host.query() }
    if (request.heartbeat) return { heartbeat: { epoch: this.#host.epoch, freeSlabs: this.#host.store.free } }
    if (request.list) return { list: this.#list(Number(request.list.after ?? 0)) }
    if (request.goodbye) {
      this.#release()
      return { goodbye: {} }
    }
    throw new Refusal('EPROTO', 'unknown request')
  }

  #hello(hello: control.Hello.$Properties, connection: RingConnection): control.HelloReply.$Properties {
    const { version, resume } = hello
    if (version !== PROTOCOL_VERSION)
      throw new Refusal(
        'EPROTO',
        `the client speaks version ${version} of the control protocol, this server version ${PROTOCOL_VERSION}`,
      )
    if (resume == null) return this.#welcome(hello, 'session opened')
    const named = this.#host.named(Number(resume.session ?? 0), resume.token ?? new Uint8Array())
    if (named === undefined || named.#closed || this.#greeted)
      throw new Refusal('ENOENT', 'there is no such session: it ended, or the server was restarted')
    if (named.context !== this.context)
      throw new Refusal(
        'EXDEV',
        `the session is on the device ${named.context.deviceName}; connect to that one`,
      )
    // What has brought the connection here is not needed any more.
    this.#control = undefined
    this.close()
    return named.resume(connection, hello)
  }

  #welcome(hello: control.Hello.$Properties, event: string): control.HelloReply.$Properties {
    this.#client = printable(hello.client ?? '').slice(0, 256) || 'unnamed client'
    const { store, epoch, sessionTimeoutMs, maxLingerMs } = this.#host
    const lingerMs = this.#linger.grant(hello.lingerMs ?? 0, maxLingerMs)
    if (!this.#greeted || hello.resume != null)
      this.#host.log.info({ client: this.#client, lingerMs, slabs: this.#slabs.size }, event)
    this.#greeted = true
    return {
      version: PROTOCOL_VERSION,
      epoch,
      session: this.id,
      token: this.token,
      slabSize: store.slabSize,
      totalSlabs: store.total,
      freeSlabs: store.free,
      sessionTimeoutMs,
      lingerMs,
    }
  }

  #list(after: number): control.ListReply.$Properties {
    const slabs = [...this.#slabs.values()]
      .filter(({ id }) => id > after)
      .sort((a, b) => a.id - b.id)
      .slice(0, MAX_LISTED_SLABS)
    return { slabs: slabs.map(described) }
  }

  async #allocate(count: number): Promise<control.AllocateReply.$Properties> {
    if (count < 1 || count > MAX_SLABS_PER_REQUEST)
      throw new Refusal('EINVAL', `allocate takes 1 to ${MAX_SLABS_PER_REQUEST} slabs, not ${count}`)
    const slabs = await this.#host.store.allocate(this.#protectionDomain, count)
    if (this.#closed) {
      // The client left while its memory was being pinned.
      this.#host.store.release(slabs)
      throw new Refusal('ECANCELED', 'the session has ended')
    }
    for (const slab of slabs) this.#slabs.set(slab.id, slab)
    return { slabs: slabs.map(described) }
  }

  #free(ids: number[]): control.FreeReply.$Properties {
    const slabs = ids.map((id) => {
      const slab = this.#slabs.get(id)
      if (slab === undefined) throw new Refusal('EINVAL', `slab ${id} is not of this session`)
      return slab
    })
    for (const id of ids) this.#slabs.delete(id)
    this.#host.store.release(new Set(slabs))
    return { freed: slabs.length }
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

/** Keeps a peer's name from writing control characters into the log. */
function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?')
}
