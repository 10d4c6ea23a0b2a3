import { randomBytes, timingSafeEqual } from 'node:crypto'
import { describeImpairment, type Impairment } from '@rdmakit/operator-kit'
import { type ConnectionRequest, Listener, parseUri } from '@rdmakit/verbs'
import { type Logger, pino } from 'pino'
import type { ControlConnection } from '../protocol/control-connection.js'
import { type control, parseDataConnection } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { StallAwareClock } from '../protocol/stall-aware-clock.js'
import { ConnectionAdmission } from './admission/admission.js'
import { type Budget, budgetOf, type Descriptors, refusalOfPlace } from './admission/connection-budget.js'
import { DESCRIPTORS_EACH, ownDescriptors } from './admission/file-descriptors.js'
import { type Actor, type AuditEvent, AuditLog } from './audit-log.js'
import type { ClientSession } from './client-session.js'
import { Lending, type LendingOptions } from './memory/lending.js'
import { SlabStore } from './memory/slab-store.js'
import { ServerCounters } from './server-counters.js'
import { SessionHandshake } from './session-handshake.js'
import { findSession } from './session-identity.js'
import { Bandwidth } from './tenants/bandwidth.js'
import { type Tenant, Tenants } from './tenants/tenants.js'

export interface SwapServerOptions {
  /** bytes to lend at most; pinned when clients ask for them */
  readonly memory: number
  /** bytes, a power of two from 1 MiB to 4 GiB, default 64 MiB */
  readonly slabSize?: number
  /** milliseconds of silence after which a client counts as dead, default 15000 */
  readonly sessionTimeout?: number
  /** default 512, fewer where RLIMIT_NOFILE does not leave room for them */
  readonly maxSessions?: number
  /** queue pairs of one session, default 256 */
  readonly maxDataConnections?: number
  /**
   * milliseconds that a session may outlive its control connection at most, when its client asks for that;
   * default 600000, 0: none does
   */
  readonly maxLinger?: number
  /** bytes per second of its link, for the division among tenants; default 0: unknown */
  readonly bandwidth?: number
  /** what the host keeps of its memory, and how it is looked at; default: it is not */
  readonly lending?: Omit<LendingOptions, 'store' | 'owners' | 'pins' | 'log'>
  /** who may have memory; default: everybody, as one tenant */
  readonly tenants?: Tenants
  /** what the process may have open; default: what it may now */
  readonly descriptors?: Descriptors
  /** milliseconds for a client to show who it is, from its request to connect on, default 5000 */
  readonly greetingTimeout?: number
  /** collects this process's heap, when a crowd of strangers has littered it; default: V8 does when it likes to */
  readonly collect?: () => void
  readonly log?: Logger
  /** what has failed in this process's control code, so that it opens no new sessions; default: nothing */
  readonly impairment?: () => Impairment | undefined
  /** where to record who had memory; default: only the log */
  readonly audit?: AuditLog
}

/** how often in a session's timeout its silence is looked at */
const LOOKS = 4

/** A page server: lends slabs of its memory and then stays out of the way of their one-sided traffic. */
export class SwapServer {
  /** drawn at start: another epoch means other, empty memory */
  readonly epoch = randomBytes(8).toString('hex')
  readonly store: SlabStore
  readonly lending: Lending
  readonly bandwidth: Bandwidth
  readonly sessionTimeoutMs: number
  readonly maxDataConnections: number
  readonly maxLingerMs: number
  readonly log: Logger
  readonly tenants: Tenants
  readonly audit: AuditLog
  readonly impairment: () => Impairment | undefined
  readonly counters = new ServerCounters()
  readonly #admission: ConnectionAdmission
  readonly #descriptors: Descriptors
  #budget: Budget
  readonly #maxSessions: number
  readonly #started = Date.now()
  readonly #listeners: Listener[] = []
  readonly #sessions = new Set<ClientSession>()
  readonly #reaper: NodeJS.Timeout
  readonly #clock: StallAwareClock
  #requests = 0
  #closed = false

  constructor(options: SwapServerOptions) {
    this.store = new SlabStore(options.memory, options.slabSize ?? 64 * 2 ** 20)
    this.sessionTimeoutMs = options.sessionTimeout ?? 15_000
    this.maxDataConnections = options.maxDataConnections ?? 256
    this.maxLingerMs = options.maxLinger ?? 600_000
    this.#maxSessions = options.maxSessions ?? 512
    this.log = options.log ?? pino({ level: 'silent' })
    this.impairment = options.impairment ?? (() => undefined)
    this.lending = new Lending({
      ...options.lending,
      store: this.store,
      pins: () => this.#listeners.some(({ uri }) => parseUri(uri).provider === 'ibverbs'),
      owners: () => this.#sessions,
      log: this.log,
    })
    this.tenants = options.tenants ?? Tenants.open()
    this.bandwidth = new Bandwidth(options.bandwidth ?? 0, this.tenants)
    this.audit = options.audit ?? new AuditLog(this.log)
    this.#descriptors = options.descriptors ?? ownDescriptors()
    this.#budget = this.#divide()
    this.#admission = new ConnectionAdmission({
      greetingTimeout: options.greetingTimeout ?? 5_000,
      budget: () => this.#budget,
      sessions: this.#sessions,
      collect: options.collect ?? (() => {}),
      log: this.log,
      record: (who, event) => this.record(who, event),
    })
    const every = this.sessionTimeoutMs / LOOKS
    this.#clock = new StallAwareClock(every)
    this.#reaper = setInterval(() => this.#endSilentSessions(), every)
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

  /** Who has memory here, and how much, in bytes. */
  get holders(): readonly { readonly client: string; readonly peer: string; readonly bytes: number }[] {
    return [...this.#sessions]
      .map(({ status }) => status)
      .filter(({ slabs }) => slabs)
      .map(({ client = '', peer = '', slabs }) => ({
        client: client ?? '',
        peer: peer ?? '',
        bytes: Number(slabs) * this.store.slabSize,
      }))
  }

  /** Listens at `uri` too. @returns the URI with its port resolved */
  async listen(uri: string): Promise<string> {
    const listener = await Listener.listen(uri, (request) => this.#onRequest(request))
    this.#listeners.push(listener)
    this.#budget = this.#divide()
    return listener.uri
  }

  /** What it has places for where it listens now. */
  get budget(): Budget {
    return this.#budget
  }

  /** Why it has fewer places than it was told to have; undefined: it has them. */
  get shortage(): string | undefined {
    const { sessions, dataConnections } = this.#budget
    return sessions >= this.#maxSessions
      ? undefined
      : `RLIMIT_NOFILE ${this.#descriptors.limit} leaves places for ${sessions} sessions of ${this.#maxSessions} and for ${dataConnections} data connections; raise "ulimit -n", or LimitNOFILE= of its unit`
  }

  #divide(): Budget {
    const providers = this.#listeners.map(({ uri }) => parseUri(uri).provider)
    return budgetOf(this.#descriptors, {
      sessions: this.#maxSessions,
      listeners: this.#listeners.length,
      descriptorsEach: Math.max(1, ...providers.map((provider) => DESCRIPTORS_EACH[provider])),
      descriptorsOfSlabs: providers.includes('shm') ? this.store.total : 0,
    })
  }

  /** What `asking` may know: an operator everything, others only their own sessions. */
  query(asking: Tenant | 'operator' | undefined): control.QueryReply.$Properties {
    const cpu = process.cpuUsage()
    const mayKnow = ({ tenant }: ClientSession) =>
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

  /** @internal whether a session of `tenant` may be opened @throws Refusal: there is no place for it */
  requirePlace(tenant: Tenant): void {
    const impairment = this.impairment()
    if (impairment !== undefined)
      throw new Refusal('EUSERS', `the server opens no new sessions: ${describeImpairment(impairment)}`)
    const { sessions } = this.#budget
    const attended = [...this.#sessions].filter(({ lingering }) => !lingering)
    switch (this.#refusal(tenant.name, tenant.sessions, sessions, attended, () => 1)) {
      case 'own limit':
        throw new Refusal('EUSERS', `tenant "${tenant.name}" has all of its ${tenant.sessions} sessions`)
      case 'none left':
        throw new Refusal('EUSERS', `the server refuses more sessions than ${sessions}`)
      case 'kept for others':
        throw new Refusal(
          'EUSERS',
          `what is left of the server's ${sessions} sessions is kept for other tenants`,
        )
    }
  }

  /** @internal it takes its place */
  opened(session: ClientSession): void {
    this.#sessions.add(session)
  }

  #refusal(
    name: string,
    most: number | undefined,
    total: number,
    sessions: readonly ClientSession[],
    places: (session: ClientSession) => number,
  ): ReturnType<typeof refusalOfPlace> {
    const taken = new Map<string, number>()
    for (const session of sessions)
      taken.set(session.tenant, (taken.get(session.tenant) ?? 0) + places(session))
    return refusalOfPlace(name, most, { total, tenants: this.tenants.all.length, taken })
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

  /** @internal */
  named(id: number, token: Uint8Array): ClientSession | undefined {
    return findSession(this.#sessions, id, token)
  }

  /** @internal */
  mayLinger({ tenant }: ClientSession): boolean {
    const lingering = [...this.#sessions].filter((session) => session.lingering)
    return (
      !this.#closed && this.#refusal(tenant, undefined, this.#maxSessions, lingering, () => 1) === undefined
    )
  }

  /** @internal */
  mayConnect({ tenant }: ClientSession): boolean {
    const most = this.tenants.find(tenant)?.dataConnections
    const places = (session: ClientSession) => session.dataPlaces
    return (
      this.#refusal(tenant, most, this.#budget.dataConnections, [...this.#sessions], places) === undefined
    )
  }

  /** @internal */
  ended(session: ClientSession): void {
    this.#sessions.delete(session)
  }

  /** Stops listening, ends every session and frees its memory. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#reaper)
    this.lending.close()
    this.bandwidth.close()
    for (const listener of this.#listeners) listener.close()
    this.#admission.close('the server ends')
    await Promise.all([...this.#sessions].map((session) => session.endFor('the server ends')))
  }

  /** @internal a control connection, from whoever is at its other end */
  admit(connection: ControlConnection, pending = this.#admission.enter()): void {
    const handshake = new SessionHandshake(this, connection, () => this.#admission.leave(pending))
    pending.accepted(handshake)
    // It may have begun to end while this one was being accepted.
    if (this.#closed) handshake.close()
  }

  async #onRequest(request: ConnectionRequest): Promise<void> {
    const data = parseDataConnection(request.privateData)
    if (data !== undefined) return this.#onData(request, data)
    if (this.#closed) return request.reject()
    return this.#admission.admit(request, (connection, pending) => this.admit(connection, pending))
  }

  async #onData(
    request: ConnectionRequest,
    { token, takeOver }: NonNullable<ReturnType<typeof parseDataConnection>>,
  ): Promise<void> {
    for (const session of this.#sessions)
      if (timingSafeEqual(session.token, token)) return session.acceptData(request, takeOver)
    return this.#admission.turnAway(request, 'EACCES', 'it belongs to no session', 'data connection')
  }

  #endSilentSessions(): void {
    const { missed, late } = this.#clock.look()
    for (const session of [...this.#sessions]) {
      if (late) session.excuse(missed)
      const { silence } = session
      if (!late && silence > this.sessionTimeoutMs)
        session.loseControl(`it was silent for ${Math.round(silence)} ms`)
    }
  }
}
