// Connection requests for a control connection, until a client is greeted: docs/page-service/admission.md.
import {
  type AcceptOptions,
  acceptRing,
  isRingRequest,
  type RingConnection,
  refuseRing,
  ringRequest,
} from '@rdmakit/ring-transport'
import type { ConnectionRequest } from '@rdmakit/verbs'
import type { Logger } from 'pino'
import { sessionOfTicket } from '../../protocol/resume-ticket.js'
import type { Actor, AuditEvent } from '../audit-log.js'
import type { Budget } from './connection-budget.js'
import { PendingSession } from './pending-session.js'
import { PendingSessions } from './pending-sessions.js'
import { StrangerGarbage } from './stranger-garbage.js'

/**
 * What the server keeps of memory for a control connection: 16 KiB that the client writes requests into, 64 times that
 * at most for requests that are not answered, as much for answers that the client does not take, and a place of the size
 * of its ring for those on their way. Nothing is read from a client.
 */
const CONTROL_CONNECTION = {
  capacity: 2 ** 14,
  receiveDepth: 16,
  sendDepth: 16,
  maxPeerCapacity: 2 ** 20,
  maxResponseMemory: 2 ** 20,
  maxTransferMemory: 0,
} as const satisfies AcceptOptions

/** Up to there a ring is one of many; larger ones, of older clients and of `status`, have a part of the places. */
const SMALL_RING = 2 ** 16
const SMALL_PER_LARGE = 8

/** The minimum time for a client once it is being greeted, however many others come. */
const GRACE_MS = 250

const REFUSALS = {
  EPROTO: 'its request is malformed',
  EMSGSIZE: 'its ring is too large for a control connection',
  EUSERS: 'too many connections that have not identified themselves',
} as const

export interface ConnectionAdmissionOptions {
  /** milliseconds for a client to show who it is */
  readonly greetingTimeout: number
  /** what there are places for now */
  readonly budget: () => Budget
  readonly sessions: Iterable<{ readonly id: number; readonly token: Uint8Array }>
  /** collects the heap */
  readonly collect: () => void
  readonly log: Logger
  readonly record: (who: Actor, event: AuditEvent) => void
}

/** Admits clients that have connected and not authenticated yet. */
export class ConnectionAdmission {
  readonly #options: ConnectionAdmissionOptions
  readonly #small: PendingSessions
  readonly #large: PendingSessions
  readonly #garbage: StrangerGarbage

  constructor(options: ConnectionAdmissionOptions) {
    const { budget, greetingTimeout: deadline } = options
    const pendingSessions = (places: () => number) =>
      new PendingSessions({ places, line: () => budget().line, deadline, grace: GRACE_MS })
    this.#options = options
    this.#small = pendingSessions(() => budget().greetings)
    this.#large = pendingSessions(() => Math.ceil(budget().greetings / SMALL_PER_LARGE))
    this.#garbage = new StrangerGarbage(options.collect)
  }

  /** A place for one that is accepted already. */
  enter(): PendingSession {
    const pending = new PendingSession()
    this.#small.enter(pending)
    return pending
  }

  /** See {@link PendingSessions.belong}. */
  belong(pending: PendingSession, session: string): void {
    this.#small.belong(pending, session)
    this.#large.belong(pending, session)
  }

  /** A session has it, or it is gone. Idempotent. */
  leave(pending: PendingSession): void {
    this.#small.leave(pending)
    this.#large.leave(pending)
  }

  close(reason: string): void {
    for (const pending of [this.#small, this.#large]) pending.close(reason)
  }

  /**
   * A request for a control connection: the client waits before it is given anything, unless it shows that it
   * belongs to a session.
   * @param greet gets the connection, and its pending state until its client has authenticated
   */
  async admit(
    request: ConnectionRequest,
    greet: (connection: RingConnection, pending: PendingSession) => void,
  ): Promise<void> {
    const shown = ringRequest(request.privateData)
    if (shown === undefined) return this.turnAway(request, 'EPROTO', REFUSALS.EPROTO)
    if (shown.capacity > CONTROL_CONNECTION.maxPeerCapacity)
      return this.turnAway(request, 'EMSGSIZE', REFUSALS.EMSGSIZE)
    const known = sessionOfTicket(this.#options.sessions, shown.applicationData)
    const pendingSessions = shown.capacity > SMALL_RING ? this.#large : this.#small
    if (known === undefined) {
      if (!(await pendingSessions.turn())) return this.#refuse(request, 'EUSERS', REFUSALS.EUSERS)
      this.#garbage.stranger()
    }
    const pending = new PendingSession()
    pendingSessions.enter(pending, known && String(known.id))
    try {
      greet(await acceptRing(request, { ...CONTROL_CONNECTION, signal: pending.signal }), pending)
    } catch (failure) {
      pendingSessions.leave(pending)
      // A peer that can only connect must not fill the log.
      this.#options.log.debug({ err: failure }, 'a session could not be opened')
      this.#count(request, (failure as { code?: string }).code ?? 'EIO', 'no session could be opened')
      // One that had to make room, or was too late, has been refused. Thrown, the reason would count as a fault of this
      // program, which then opens no new sessions.
      if (!pending.signal.aborted) throw failure
    }
  }

  /** Refuses a request when its turn comes, like that of every unknown client. */
  async turnAway(request: ConnectionRequest, code: string, reason: string, what?: string): Promise<void> {
    await this.#small.turn(false)
    this.#refuse(request, code, reason, what)
  }

  #refuse(request: ConnectionRequest, code: string, reason: string, what?: string): void {
    this.#garbage.stranger()
    if (isRingRequest(request.privateData)) refuseRing(request, code)
    else request.reject()
    this.#count(request, code, reason, what)
  }

  #count(request: ConnectionRequest, code: string, reason: string, what = 'connection'): void {
    const who = {
      // It is asked for only where it is written down.
      get peer() {
        return request.peerUri
      },
    }
    this.#options.record(who, { event: 'refused', request: what, code, reason })
  }
}
