import { randomBytes, timingSafeEqual } from 'node:crypto'
import { acceptRing, isRingRequest } from '@rdmakit/ring-transport'
import { type ConnectionRequest, Listener } from '@rdmakit/verbs'
import { type Logger, pino } from 'pino'
import { sessionNamed } from './lingering.js'
import { type control, dataConnectionToken } from './protocol.js'
import { Session } from './session.js'
import { SlabStore } from './slab-store.js'

export interface SwapServerOptions {
  /** bytes to lend at most; pinned when clients ask for them */
  readonly memory: number
  /** bytes, a power of two from 1 MiB to 4 GiB, default 64 MiB */
  readonly slabSize?: number
  /** milliseconds of silence after which a client counts as dead, default 15000 */
  readonly sessionTimeout?: number
  /** default 256 */
  readonly maxSessions?: number
  /** queue pairs of one session, default 256 */
  readonly maxDataConnections?: number
  /**
   * milliseconds that a session may outlive its control connection at most, when its client asks for that;
   * default 600000, 0: none does
   */
  readonly maxLinger?: number
  readonly log?: Logger
}

/** A page server: lends slabs of its memory and then stays out of the way of their one-sided traffic. */
export class SwapServer {
  /** drawn at start: another epoch means other, empty memory */
  readonly epoch = randomBytes(8).toString('hex')
  readonly store: SlabStore
  readonly sessionTimeoutMs: number
  readonly maxDataConnections: number
  readonly maxLingerMs: number
  readonly log: Logger
  readonly #maxSessions: number
  readonly #started = Date.now()
  readonly #listeners: Listener[] = []
  readonly #sessions = new Set<Session>()
  readonly #reaper: NodeJS.Timeout
  #opening = 0
  #requests = 0
  #closed = false

  constructor(options: SwapServerOptions) {
    this.store = new SlabStore(options.memory, options.slabSize ?? 64 * 2 ** 20)
    this.sessionTimeoutMs = options.sessionTimeout ?? 15_000
    this.maxDataConnections = options.maxDataConnections ?? 256
    this.maxLingerMs = options.maxLinger ?? 600_000
    this.#maxSessions = options.maxSessions ?? 256
    this.log = options.log ?? pino({ level: 'silent' })
    this.#reaper = setInterval(() => this.#endSilentSessions(), this.sessionTimeoutMs / 4)
    this.#reaper.unref()
  }

  /** Sessions, also those that linger. */
  get sessions(): number {
    return this.#sessions.size
  }

  /** Sessions that have outlived their control connection. */
  get lingeringSessions(): number {
    return [...this.#sessions].filter(({ lingering }) => lingering).length
  }

  /** Listens at `uri` too. @returns the URI with its port resolved */
  async listen(uri: string): Promise<string> {
    const listener = await Listener.listen(uri, (request) => this.#onRequest(request))
    this.#listeners.push(listener)
    return listener.uri
  }

  query(): control.QueryReply.$Properties {
    const cpu = process.cpuUsage()
    return {
      epoch: this.epoch,
      slabSize: this.store.slabSize,
      totalSlabs: this.store.total,
      freeSlabs: this.store.free,
      sessions: this.#sessions.size,
      userCpuUs: cpu.user,
      systemCpuUs: cpu.system,
      uptimeMs: Date.now() - this.#started,
      controlRequests: ++this.#requests,
    }
  }

  /** @internal */
  named(id: number, token: Uint8Array): Session | undefined {
    return sessionNamed(this.#sessions, id, token)
  }

  /** @internal */
  mayLinger(): boolean {
    return !this.#closed && this.lingeringSessions < this.#maxSessions
  }

  /** @internal */
  ended(session: Session): void {
    this.#sessions.delete(session)
  }

  /** Stops listening, ends every session and frees its memory. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#reaper)
    for (const listener of this.#listeners) listener.close()
    for (const session of [...this.#sessions]) session.close()
  }

  async #onRequest(request: ConnectionRequest): Promise<void> {
    const token = dataConnectionToken(request.privateData)
    if (token !== undefined) return this.#onData(request, token)
    if (!isRingRequest(request.privateData) || this.#closed) return request.id.reject()
    if (this.#sessions.size - this.lingeringSessions + this.#opening >= this.#maxSessions) {
      this.log.warn({ peer: request.id.peerUri }, 'refused a session: the limit is reached')
      return request.id.reject()
    }
    this.#opening++
    try {
      const context = request.id.context
      const connection = await acceptRing(request)
      this.#sessions.add(new Session(this, connection, context))
    } catch (failure) {
      this.log.warn({ err: failure }, 'a session could not be opened')
      throw failure
    } finally {
      this.#opening--
    }
  }

  async #onData(request: ConnectionRequest, token: Buffer): Promise<void> {
    for (const session of this.#sessions)
      if (timingSafeEqual(session.token, token)) return session.acceptData(request)
    this.log.warn({ peer: request.id.peerUri }, 'refused a data connection of no session')
    request.id.reject()
  }

  #endSilentSessions(): void {
    for (const session of [...this.#sessions]) {
      if (session.silence <= this.sessionTimeoutMs) continue
      this.log.warn({ client: session.client, silence: session.silence }, 'client is silent')
      session.loseControl()
    }
  }
}
