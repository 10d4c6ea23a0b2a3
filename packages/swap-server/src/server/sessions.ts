import { timingSafeEqual } from 'node:crypto'
import { describeImpairment } from '@rdmakit/operator-kit'
import { parseDataConnection, TOKEN_BYTES } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { StallAwareClock } from '../protocol/stall-aware-clock.js'
import type { ProvenClient } from './admission/authentication.js'
import { type Budget, refusalOfPlace } from './admission/connection-budget.js'
import { ClientSession, type SessionPlaces } from './client-session.js'
import type { SessionHost } from './session-host.js'
import { ControlMemory } from './tenants/control-memory.js'

/** how often in a session's timeout its silence is looked at */
const LOOKS = 4

/** The sessions of a server: who gets one, for how many more there is a place, and which end for their silence. */
export class Sessions implements SessionPlaces {
  readonly lookEvery: number
  readonly #host: SessionHost
  readonly #budget: () => Budget
  readonly #sessions = new Set<ClientSession>()
  readonly #memory: ControlMemory
  readonly #clock: StallAwareClock
  readonly #reaper: NodeJS.Timeout
  #closed = false

  /** @param budget what there are places for now */
  constructor(host: SessionHost, budget: () => Budget) {
    this.#host = host
    this.#budget = budget
    this.#memory = new ControlMemory(host.controlMemory)
    this.lookEvery = host.sessionTimeoutMs / LOOKS
    this.#clock = new StallAwareClock(this.lookEvery)
    this.#reaper = setInterval(() => this.#endSilent(), this.lookEvery)
    this.#reaper.unref()
  }

  /** also those that linger */
  get size(): number {
    return this.#sessions.size
  }

  [Symbol.iterator](): Iterator<ClientSession> {
    return this.#sessions.values()
  }

  /** Those that have outlived their control connection, or those that have not. */
  those(are: { readonly lingering: boolean }): ClientSession[] {
    return [...this.#sessions].filter(({ lingering }) => lingering === are.lingering)
  }

  /** @throws Refusal EUSERS: there is no place for it */
  open(client: ProvenClient): ClientSession {
    const impairment = this.#host.impairment()
    if (impairment !== undefined)
      throw new Refusal('EUSERS', `the server opens no new sessions: ${describeImpairment(impairment)}`)
    const { tenant, connection } = client
    this.#requirePlace(tenant)
    if (!this.#memory.fits(tenant.name, connection.memory))
      throw new Refusal(
        'EUSERS',
        `the control connections of tenant "${tenant.name}" have all of the server's memory that they may`,
      )
    const session = new ClientSession(this.#host, this, client)
    this.#sessions.add(session)
    return session
  }

  /**
   * A session that lingers has left its place to others, and needs one again; one whose client is there has it.
   * @throws Refusal EUSERS: there is none; the session lingers on
   */
  requirePlaceToResume(session: ClientSession, { tenant }: ProvenClient): void {
    if (session.lingering) this.#requirePlace(tenant)
  }

  #requirePlace(tenant: ProvenClient['tenant']): void {
    const { sessions } = this.#budget()
    const attended = this.those({ lingering: false })
    switch (this.#refusal(tenant.name, tenant.sessions, sessions, attended, () => 1)) {
      case 'own limit':
        throw new Refusal('EUSERS', `tenant "${tenant.name}" has all of its ${tenant.sessions} sessions`)
      case 'none left':
        throw new Refusal('EUSERS', `the server allows at most ${sessions} sessions`)
      case 'kept for others':
        throw new Refusal(
          'EUSERS',
          `the remaining sessions of the server's ${sessions} are reserved for other tenants`,
        )
    }
  }

  mayLinger({ tenant }: ClientSession): boolean {
    const { maxSessions } = this.#host
    const lingering = this.those({ lingering: true })
    return !this.#closed && this.#refusal(tenant, undefined, maxSessions, lingering, () => 1) === undefined
  }

  mayConnect({ tenant }: ClientSession): boolean {
    const most = this.#host.tenants.find(tenant)?.dataConnections
    const places = (session: ClientSession) => session.dataPlaces
    const { dataConnections } = this.#budget()
    return this.#refusal(tenant, most, dataConnections, [...this.#sessions], places) === undefined
  }

  charge({ tenant }: ClientSession, before: number, after: number): boolean {
    return this.#memory.change(tenant, before, after)
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
    return refusalOfPlace(name, most, { total, tenants: this.#host.tenants.all.length, taken })
  }

  ended(session: ClientSession): void {
    this.#sessions.delete(session)
  }

  /** The session that Resume names, if its token is right; it is compared in constant time. */
  named(id: number, token: Uint8Array): ClientSession | undefined {
    for (const session of token.length === TOKEN_BYTES ? this.#sessions : [])
      if (session.id === id && timingSafeEqual(session.token, token)) return session
    return undefined
  }

  /** The session that a data connection names, and its process; undefined: what connects is none. */
  ofData(privateData: Uint8Array) {
    const data = parseDataConnection(privateData)
    return (
      data && {
        session: [...this.#sessions].find(({ token }) => timingSafeEqual(token, data.token)),
        takeOver: data.takeOver,
      }
    )
  }

  /** Ends every session, and lets none linger. */
  async close(reason: string): Promise<void> {
    this.#closed = true
    clearInterval(this.#reaper)
    await Promise.all([...this.#sessions].map((session) => session.endFor(reason)))
  }

  #endSilent(): void {
    const { missed, late } = this.#clock.look()
    for (const session of [...this.#sessions]) {
      if (late) session.control.excuse(missed)
      const { silence } = session
      if (!late && silence > this.#host.sessionTimeoutMs)
        session.loseControl(`it was silent for ${Math.round(silence)} ms`)
    }
  }
}
