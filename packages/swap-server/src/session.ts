import { randomBytes } from 'node:crypto'
import type { RingConnection } from '@rdmakit/ring-transport'
import type { CompletionQueue, ConnectionRequest, Context, ProtectionDomain, QueuePair } from '@rdmakit/verbs'
import type { Logger } from 'pino'
import { control, MAX_SLABS_PER_REQUEST, PROTOCOL_VERSION, TOKEN_BYTES } from './protocol.js'
import { OutOfSlabsError, type Slab, type SlabStore } from './slab-store.js'

/** What all sessions of a server share. */
export interface SessionHost {
  readonly epoch: string
  readonly store: SlabStore
  readonly sessionTimeoutMs: number
  readonly log: Logger
  readonly maxDataConnections: number
  query(): control.QueryReply.$Properties
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
 * When the control connection ends, everything of the client ends with it.
 */
export class Session {
  readonly token = randomBytes(TOKEN_BYTES)
  readonly context: Context
  readonly #host: SessionHost
  readonly #control: RingConnection
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs = new Map<number, Slab>()
  readonly #data = new Set<QueuePair>()
  #completionQueue: CompletionQueue | undefined
  #greeted = false
  #closed = false
  #lastHeard = Date.now()
  #client = 'a client that has not said hello'

  constructor(host: SessionHost, connection: RingConnection, context: Context) {
    this.#host = host
    this.#control = connection
    this.context = context
    this.#protectionDomain = context.allocateProtectionDomain()
    connection.handle((request) => this.#answer(request.copy()))
  }

  get client(): string {
    return this.#client
  }

  /** milliseconds since the client's last request */
  get silence(): number {
    return Date.now() - this.#lastHeard
  }

  /** Takes a data connection: a queue pair in this session's protection domain that posts nothing. */
  async acceptData({ id }: ConnectionRequest): Promise<void> {
    if (this.#closed || id.context !== this.context || this.#data.size >= this.#host.maxDataConnections) {
      id.reject()
      return
    }
    this.#completionQueue ??= this.context.createCompletionQueue({ entries: 16 })
    const queuePair = id.createQueuePair(this.#protectionDomain, {
      sendQueue: this.#completionQueue,
      maxSend: 1,
      maxReceive: 1,
      maxInlineData: 0,
    })
    this.#data.add(queuePair)
    void id.disconnected.then(() => {
      this.#data.delete(queuePair)
      id.close()
    })
    await id.accept()
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    // The keys die before the memory is given back: the protection domain's children go first.
    const slabs = [...this.#slabs.values()]
    this.#slabs.clear()
    this.#host.store.release(slabs)
    this.#protectionDomain.close()
    this.#completionQueue?.close()
    void this.#control.close()
    this.#host.log.info({ client: this.#client, slabs: slabs.length }, 'session ended')
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
    if (request.hello) return { hello: this.#hello(request.hello) }
    if (!this.#greeted) throw new Refusal('EPROTO', 'a session starts with hello')
    if (request.allocate) return { allocate: await this.#allocate(request.allocate.count ?? 0) }
    if (request.free) return { free: this.#free((request.free.ids ?? []).map(Number)) }
    if (request.query) return { query: this.#host.query() }
    if (request.heartbeat) return { heartbeat: { epoch: this.#host.epoch, freeSlabs: this.#host.store.free } }
    throw new Refusal('EPROTO', 'unknown request')
  }

  #hello({ version, client }: control.Hello.$Properties): control.HelloReply.$Properties {
    if (version !== PROTOCOL_VERSION)
      throw new Refusal(
        'EPROTO',
        `the client speaks version ${version} of the control protocol, this server version ${PROTOCOL_VERSION}`,
      )
    this.#client = printable(client ?? '').slice(0, 256) || 'unnamed client'
    if (!this.#greeted) this.#host.log.info({ client: this.#client }, 'session opened')
    this.#greeted = true
    const { store, epoch, sessionTimeoutMs } = this.#host
    return {
      version: PROTOCOL_VERSION,
      epoch,
      token: this.token,
      slabSize: store.slabSize,
      totalSlabs: store.total,
      freeSlabs: store.free,
      sessionTimeoutMs,
    }
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
    return {
      slabs: slabs.map(({ id, region }) => ({
        id,
        address: Number(region.address),
        rkey: region.remoteKey,
        length: region.length,
      })),
    }
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
