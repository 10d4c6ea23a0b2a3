import { randomBytes } from 'node:crypto'
import type { Impairment } from '@rdmakit/operator-kit'
import { type ProviderName, UsageError } from '@rdmakit/verbs'
import { integerInRange, milliseconds, millisecondsOrNone } from '@rdmakit/verbs/internal'
import { type Logger, pino } from 'pino'
import type { control } from '../protocol/messages.js'
import { type Actor, type AuditEvent, AuditLog } from './audit-log.js'
import { Lending, type LendingOptions } from './memory/lending.js'
import { ServerCounters } from './server-counters.js'
import { type Admits, type ListeningOptions, ServerListeners } from './server-listeners.js'
import { Sessions } from './sessions.js'
import { Bandwidth } from './tenants/bandwidth.js'
import { type Tenant, Tenants } from './tenants/tenants.js'

export interface SwapServerOptions extends ListeningOptions {
  /** bytes to lend at most; pinned when clients ask for them */
  readonly memory: number
  /** bytes, a power of two from 1 MiB to 4 GiB, default 64 MiB */
  readonly slabSize?: number | undefined
  /** milliseconds of silence after which a client counts as dead, default 15000 */
  readonly sessionTimeout?: number | undefined
  /** default 512, fewer where RLIMIT_NOFILE does not leave room for them */
  readonly maxSessions?: number | undefined
  /**
   * bytes of the server's own memory that the control connections of one tenant may take together, default 128 KiB for each
   * of `maxSessions`
   */
  readonly controlMemory?: number | undefined
  /** queue pairs of one session, default 256 */
  readonly maxDataConnections?: number | undefined
  /**
   * milliseconds that a session may outlive its control connection at most, when its client asks for that;
   * default 600000, 0: none does
   */
  readonly maxLinger?: number | undefined
  /** bytes per second of its link, for the division among tenants; default 0: unknown */
  readonly bandwidth?: number | undefined
  /** what the host keeps of its memory, and how it is looked at; default: it is not */
  readonly lending?: Omit<LendingOptions, 'memory' | 'slabSize' | 'owners' | 'pins' | 'log'> | undefined
  /** who may have memory; default: everybody, as one tenant */
  readonly tenants?: Tenants | undefined
  readonly log?: Logger | undefined
  /** what has failed in this process's control code, so that it opens no new sessions; default: nothing */
  readonly impairment?: (() => Impairment | undefined) | undefined
  /** where to record who had memory; default: only the log */
  readonly audit?: AuditLog | undefined
}

/**
 * A page server: lends slabs of its memory and then stays out of the way of their one-sided traffic. It keeps the event
 * loop alive while it listens, unless {@link unref} was called, and while it has connections; a session that lingers has
 * none.
 */
export class SwapServer {
  /** drawn at start: another epoch means other, empty memory */
  readonly epoch = randomBytes(8).toString('hex')
  readonly lending: Lending
  readonly bandwidth: Bandwidth
  readonly sessionTimeoutMs: number
  readonly maxSessions: number
  readonly maxDataConnections: number
  readonly maxLingerMs: number
  readonly log: Logger
  readonly tenants: Tenants
  readonly controlMemory: number
  readonly audit: AuditLog
  readonly impairment: () => Impairment | undefined
  readonly counters = new ServerCounters()
  readonly #started = Date.now()
  readonly #sessions: Sessions
  readonly #listeners: ServerListeners
  #requests = 0
  #closed = false

  constructor(options: SwapServerOptions) {
    const { memory, slabSize = 64 * 2 ** 20, tenants = Tenants.open() } = options
    const providers = new Set<ProviderName>()
    const { sessionTimeout = 15_000, maxLinger = 600_000, bandwidth = 0 } = options
    this.sessionTimeoutMs = milliseconds('sessionTimeout', sessionTimeout)
    this.maxSessions = integerInRange('maxSessions', options.maxSessions ?? 512)
    this.maxDataConnections = integerInRange('maxDataConnections', options.maxDataConnections ?? 256)
    this.maxLingerMs = millisecondsOrNone('maxLinger', maxLinger)
    if (!(bandwidth >= 0)) throw new UsageError(`bandwidth must be bytes per second, not ${bandwidth}`)
    this.log = options.log ?? pino({ level: 'silent' })
    this.impairment = options.impairment ?? (() => undefined)
    this.lending = new Lending({
      ...options.lending,
      memory,
      slabSize,
      pins: () => providers.has('ibverbs'),
      owners: () => [...this.#sessions].map((session) => session.control),
      log: this.log,
    })
    this.tenants = tenants
    const { controlMemory = 2 ** 17 * this.maxSessions } = options
    this.controlMemory = integerInRange('controlMemory', controlMemory, 0, Number.MAX_SAFE_INTEGER)
    this.bandwidth = new Bandwidth(bandwidth, tenants)
    this.audit = options.audit ?? new AuditLog(this.log)
    this.#sessions = new Sessions(this, () => this.#listeners.budget)
    this.#listeners = new ServerListeners(this, this.#sessions, providers, options)
  }

  get store(): Lending['store'] {
    return this.lending.store
  }

  /** Sessions, also those that linger. */
  get sessions(): number {
    return this.#sessions.size
  }

  /** Sessions that have outlived their control connection. */
  get lingeringSessions(): number {
    return this.#sessions.those({ lingering: true }).length
  }

  /** Who has memory here, and how much, in bytes. */
  get holders(): readonly { readonly client: string; readonly peer: string; readonly bytes: number }[] {
    return [...this.#sessions]
      .map(({ status }) => status)
      .filter(({ slabs }) => slabs)
      .map(({ client, peer, slabs }) => ({
        client: client ?? '',
        peer: peer ?? '',
        bytes: Number(slabs) * this.store.slabSize,
      }))
  }

  /** @internal */
  get listeners(): Admits {
    return this.#listeners
  }

  /** Listens at `uri` too. @returns the URI with its port resolved */
  listen(uri: string): Promise<string> {
    return this.#listeners.listen(uri)
  }

  /** Keeps the event loop alive until the server is closed (the default): undoes {@link unref}. */
  ref(): this {
    this.#listeners.referenced = true
    return this
  }

  /** Listening no longer keeps the program alive; each connection of a client still does, until it has ended. */
  unref(): this {
    this.#listeners.referenced = false
    return this
  }

  /** Its places at the current addresses. */
  get budget() {
    return this.#listeners.budget
  }

  /** Why it has fewer places than it was told to have; undefined: it has them. */
  get shortage(): string | undefined {
    return this.#listeners.shortage
  }

  /** Returns the state that `asking` may see: an operator sees everything, others only their own sessions. */
  query(asking: Tenant | 'operator' | undefined): control.QueryReply.$Properties {
    const cpu = process.cpuUsage()
    const mayKnow = ({ tenant }: { readonly tenant: string }) =>
      asking === 'operator' || asking?.operator === true || tenant === asking?.name
    return {
      epoch: this.epoch,
      slabSize: this.store.slabSize,
      totalSlabs: this.store.total,
      freeSlabs: this.lending.free,
      sessions: this.#sessions.size,
      userCpuUs: cpu.user,
      systemCpuUs: cpu.system,
      uptimeMs: Date.now() - this.#started,
      controlRequests: this.#requests,
      pressure: this.lending.pressure,
      tenants: this.tenants.all
        .filter(({ name }) => asking === 'operator' || asking?.operator === true || name === asking?.name)
        .map((tenant) => this.#status(tenant)),
      sessionList: [...this.#sessions].filter(mayKnow).map(({ status }) => status),
    }
  }

  #status({ name, quota, weight, class: kind }: Tenant): control.TenantStatus.$Properties {
    const { bytes, operations } = this.bandwidth.useOf(name)
    return {
      name,
      opportunistic: kind === 'opportunistic',
      slabs: this.lending.taken(name),
      quotaSlabs: quota === undefined ? 0 : Math.floor(quota / this.store.slabSize),
      weight,
      sessions: [...this.#sessions].filter(({ tenant }) => tenant === name).length,
      usage: { bytesPerSecond: bytes, operationsPerSecond: operations },
      limits: this.bandwidth.limitsOf(name),
    }
  }

  record(who: Actor, event: AuditEvent): void {
    this.audit.record(who, event)
    if (event.event === 'refused') this.counters.refusal(event.code)
    else if (event.event.startsWith('session-'))
      this.counters.session(event.event.slice('session-'.length) as 'opened' | 'resumed' | 'ended')
  }

  answered(request: string, seconds: number): void {
    this.#requests++
    this.counters.request(request, seconds)
  }

  /**
   * Reads the tenants file anew. Sessions of a tenant that is not in it any more end; keys that are not there
   * any more open no new ones.
   * @throws ConfigurationError, and nothing has changed
   */
  reloadTenants(): void {
    const { added, removed } = this.tenants.reload()
    this.record({}, { event: 'tenants-reloaded', added, removed })
    for (const session of [...this.#sessions])
      if (this.tenants.find(session.tenant) === undefined) session.close('its tenant was removed')
  }

  /** Stops listening, ends every session and frees its memory. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.lending.close()
    this.bandwidth.close()
    this.#listeners.close('the server ends')
    await this.#sessions.close('the server ends')
  }
}
