import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { printable } from '@rdmakit/operator-kit'
import type { ConnectionRequest, Context, ProtectionDomain } from '@rdmakit/verbs'
import { type control, TOKEN_BYTES, UNBOUND_VERSION } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { compareTakeOvers, judgeClaim, type TakeOver } from '../protocol/take-over-number.js'
import type { ProvenClient } from './admission/authentication.js'
import { DataConnections } from './data-connections.js'
import { SessionControl } from './session-control.js'
import type { SessionHost } from './session-host.js'
import { SessionSlabs } from './session-slabs.js'

/** A timer this much behind was held up with all else of this process. */
const STALLED_MS = 100

/** The sessions of a server, as far as they concern one of them. */
export interface SessionPlaces {
  /** milliseconds from one look for silent sessions to the next: behind a standstill it has read what came meanwhile */
  readonly lookEvery: number
  /** It may linger: there is room for one more of its tenant's that does. */
  mayLinger(session: ClientSession): boolean
  /** It may have one more data connection than it has had. */
  mayConnect(session: ClientSession): boolean
  /** Its control connection takes `after` bytes, where it took `before`. See {@link ControlMemory.change}. */
  charge(session: ClientSession, before: number, after: number): boolean
  /** It is over, and what it had is free. */
  ended(session: ClientSession): void
}

/**
 * One authenticated client: its control connection, its protection domain, its slabs and its data
 * connections. Only such clients have a protection domain here: before, a client is a SessionHandshake. When
 * the control connection ends, everything of the client ends with it, unless it was granted to linger: then
 * another control connection may resume the session until its time is up.
 */
export class ClientSession {
  /** 48 random bits, exact as a number and never 0, so that one of another epoch names nothing */
  readonly id = randomBytes(6).readUIntBE(0, 6) || 1
  readonly token = randomBytes(TOKEN_BYTES)
  readonly context: Context
  /** The tenant as which it allocates memory. */
  readonly tenant: string
  /** The requests from and to its client. */
  readonly control: SessionControl
  readonly #host: SessionHost
  readonly #places: SessionPlaces
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs: SessionSlabs
  readonly #data: DataConnections
  readonly #opened = Date.now()
  /** of its current client, or the last one; the connection that sent it may be gone */
  #hello: control.Hello.$Properties = {}
  #keyId: string | undefined
  #peer = ''
  #takeOver: TakeOver
  /** milliseconds that it outlives its control connection, and the clock that runs then */
  #lingerMs = 0
  #lingering: NodeJS.Timeout | undefined
  /** when that is to end it, of performance.now() */
  #lingersUntil = 0
  #closed = false

  /** Answers what comes from the client's connection from now on. */
  constructor(host: SessionHost, places: SessionPlaces, client: ProvenClient) {
    this.#host = host
    this.#places = places
    this.#takeOver = client.takeOver()
    this.context = client.connection.context
    this.tenant = client.tenant.name
    this.#protectionDomain = this.context.allocateProtectionDomain()
    this.#slabs = new SessionSlabs(host, this.tenant, this.#protectionDomain)
    this.#data = new DataConnections(this.#protectionDomain)
    this.control = new SessionControl(host, this, this.#slabs)
    this.#serve(client)
  }

  #serve({ connection, hello, keyId }: ProvenClient): void {
    this.#hello = hello
    this.#keyId = keyId
    this.#peer = connection.peerUri
    this.control.serve(connection)
  }

  /** The client's name for itself. */
  get client(): string {
    return printable(this.#hello.client ?? '').slice(0, 256) || 'unnamed client'
  }

  /** The client's identity, for the audit log. */
  get actor() {
    return { tenant: this.tenant, keyId: this.#keyId, client: this.client, peer: this.#peer }
  }

  get status(): control.SessionStatus.$Properties {
    return {
      client: this.client,
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

  /** milliseconds since the client's last request; 0 if no client has the session */
  get silence(): number {
    return this.lingering ? 0 : this.control.silence
  }

  /** It has outlived its control connection and can be resumed. */
  get lingering(): boolean {
    return this.#lingering !== undefined
  }

  /** Data connections that it has had at once at most: so many it can have again after a link has broken. */
  get dataPlaces(): number {
    return this.#data.places
  }

  /**
   * Takes a data connection: a queue pair in this session's protection domain that posts nothing. One of a process
   * that does not have the session any more may come late.
   */
  async acceptData(request: ConnectionRequest, takeOver: TakeOver): Promise<void> {
    // Before all checks: one that is refused at once would come back at once.
    const wait = this.#host.tenants.turn(this.tenant)
    if (wait === undefined) {
      request.id.reject()
      return
    }
    if (wait > 0) await delay(wait, undefined, { ref: false })
    const { id } = request
    const connections = this.#data.present
    if (
      this.#closed ||
      compareTakeOvers(takeOver, this.#takeOver) !== 0 ||
      id.context !== this.context ||
      connections >= this.#host.maxDataConnections ||
      (connections >= this.#data.places && !this.#places.mayConnect(this))
    ) {
      id.reject()
      return
    }
    await this.#data.accept(id)
  }

  charge(before: number, after: number): boolean {
    return this.#places.charge(this, before, after)
  }

  /**
   * The control connection is lost: the session lingers, or ends.
   * @param reason why, for the record
   */
  loseControl(reason: string): void {
    this.control.close()
    if (this.#closed || this.#lingerMs === 0 || !this.#places.mayLinger(this)) {
      this.close(reason)
      return
    }
    // No client uses it.
    this.#host.bandwidth.leave(this)
    this.#host.log.info({ client: this.client, lingerMs: this.#lingerMs, reason }, 'session lingers')
    this.#linger(this.#lingerMs, `${reason}; it was not resumed`)
  }

  #linger(milliseconds: number, reason: string): void {
    this.#lingersUntil = performance.now() + milliseconds
    this.#lingering = setTimeout(() => {
      // Timers run before what has come from outside: its client's Resume may lie unread.
      const stalled = performance.now() - this.#lingersUntil > STALLED_MS
      if (stalled) this.#linger(Math.min(this.#places.lookEvery, this.#host.maxLingerMs), reason)
      else this.close(reason)
    }, milliseconds).unref()
  }

  /** As long again, from now on. */
  #lingerOn(): void {
    this.#lingering?.refresh()
    this.#lingersUntil = performance.now() + this.#lingerMs
  }

  /**
   * See {@link DataConnections.end}. Who has claimed the session in time does not lose it to a device that takes its time:
   * it lingers anew from the last look on.
   * @throws Refusal ETIMEDOUT
   */
  endData(): Promise<void> | undefined {
    return this.#data.end(() => this.#lingerOn())
  }

  /**
   * Another process, or the same one again, wants it. @throws Refusal ESTALE, EBUSY; the current client then keeps
   * the session
   */
  claim(takeOver: TakeOver, hello: control.Hello.$Properties): void {
    const { lingering } = this
    const claim = judgeClaim(
      { takeOver: this.#takeOver, lingering },
      takeOver,
      hello.resume?.unattended === true,
    )
    if (claim === 'attended') throw new Refusal('EBUSY', `a client has the session: ${this.client}`)
    if (claim === 'fenced')
      throw new Refusal(
        // A client that knows no numbers takes ESTALE for the end of the session, and its memory for lost.
        hello.takeOver == null ? 'EACCES' : 'ESTALE',
        `another process has taken the volume over: ${this.client}, take-over ${this.#takeOver.number}, and this is take-over ${takeOver.number}`,
      )
    this.#takeOver = takeOver
  }

  /** Continues with another control connection, behind {@link endData}. */
  resume(client: ProvenClient): control.HelloReply.$Properties {
    this.#stopLingering()
    this.#serve(client)
    return { ...this.welcome('session-resumed'), resumed: true }
  }

  #stopLingering(): void {
    clearTimeout(this.#lingering)
    this.#lingering = undefined
  }

  /** The reply with which it begins or continues. */
  welcome(event: 'session-opened' | 'session-resumed'): control.HelloReply.$Properties {
    const { lending, epoch, sessionTimeoutMs, maxLingerMs } = this.#host
    this.#lingerMs = Math.min(this.#hello.lingerMs ?? 0, maxLingerMs)
    this.#host.record(this.actor, { event })
    if (this.#keyId !== undefined && this.#hello.version === UNBOUND_VERSION)
      this.#host.log.warn({ client: this.client }, 'an older client: a relay could forward its proof')
    return {
      version: this.#hello.version ?? UNBOUND_VERSION,
      epoch,
      session: this.id,
      token: this.token,
      slabSize: lending.store.slabSize,
      totalSlabs: lending.store.total,
      freeSlabs: this.#slabs.free,
      sessionTimeoutMs,
      lingerMs: this.#lingerMs,
      limits: this.#host.bandwidth.enter(this),
      takeOver: this.#takeOver,
    }
  }

  /**
   * Like {@link close}, but its client is notified first: otherwise it would call a server for a while that
   * no longer has its memory. A client that does not answer is not waited for long.
   */
  async endFor(reason: string): Promise<void> {
    await this.control.tellEnding(reason)
    this.close(reason)
  }

  /** @param reason why, for the record */
  close(reason: string): void {
    this.end(reason)
    this.control.close()
    this.#places.ended(this)
  }

  /** Gives everything back but the control connection. Idempotent. */
  end(reason: string): void {
    if (this.#closed) return
    this.#closed = true
    this.control.end()
    this.#stopLingering()
    // First who can reach the memory, then the keys, then the memory: the protection domain's children go before it.
    this.#data.close()
    this.#host.bandwidth.leave(this)
    const slabs = this.#slabs.releaseAll()
    this.#protectionDomain.close()
    this.#data.closeQueue()
    this.#host.record(this.actor, { event: 'session-ended', reason, slabs })
  }
}
