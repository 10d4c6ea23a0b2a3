import { type ConnectionRequest, Listener, type ProviderName, parseUri } from '@rdmakit/verbs'
import type { ControlConnection } from '../protocol/control-connection.js'
import { ConnectionAdmission } from './admission/admission.js'
import { type Budget, budgetOf, type Descriptors } from './admission/connection-budget.js'
import { DESCRIPTORS_EACH, ownDescriptors } from './admission/file-descriptors.js'
import type { PendingSession } from './admission/pending-session.js'
import { SessionHandshake } from './session-handshake.js'
import type { SessionHost } from './session-host.js'
import type { Sessions } from './sessions.js'

/** milliseconds between two lines of the log about connections that must wait */
const STALLED_EVERY_MS = 10_000

/** How a server takes connections of those who have not shown who they are. */
export interface ListeningOptions {
  /** what the process may have open; default: what it may now */
  readonly descriptors?: Descriptors | undefined
  /** milliseconds for a client to show who it is, from its request to connect on, default 5000 */
  readonly greetingTimeout?: number | undefined
  /** collects this process's heap, when a crowd of strangers has littered it; default: V8 does when it likes to */
  readonly collect?: (() => void) | undefined
}

/** For tests, which have connections of their own. */
export interface Admits {
  /** A control connection, from whoever is at its other end. */
  admit(connection: ControlConnection, pending?: PendingSession): void
}

/** Where a server listens, what it has places for there, and those who have not shown yet who they are. */
export class ServerListeners implements Admits {
  readonly #host: SessionHost
  readonly #sessions: Sessions
  readonly #providers: Set<ProviderName>
  readonly #admission: ConnectionAdmission
  readonly #descriptors: Descriptors
  readonly #listeners: Listener[] = []
  #budget: Budget
  /** when the log said so last, of performance.now() */
  #saidStalled = Number.NEGATIVE_INFINITY
  #referenced = true
  #closed = false

  /** @param providers filled with what it listens by */
  constructor(
    host: SessionHost,
    sessions: Sessions,
    providers: Set<ProviderName>,
    options: ListeningOptions,
  ) {
    this.#host = host
    this.#sessions = sessions
    this.#providers = providers
    this.#descriptors = options.descriptors ?? ownDescriptors()
    this.#budget = this.#divide()
    this.#admission = new ConnectionAdmission({
      greetingTimeout: options.greetingTimeout ?? 5_000,
      budget: () => this.#budget,
      sessions,
      collect: options.collect ?? (() => {}),
      log: host.log,
      record: (who, event) => host.record(who, event),
    })
  }

  /** Listens at `uri` too. @returns the URI with its port resolved */
  async listen(uri: string): Promise<string> {
    const onStalled = (err: unknown) => this.#sayStalled(err)
    const listener = await Listener.listen(uri, (request) => this.#onRequest(request), { onStalled })
    if (!this.#referenced) listener.unref()
    this.#listeners.push(listener)
    this.#providers.add(parseUri(listener.uri).provider)
    this.#budget = this.#divide()
    return listener.uri
  }

  /** Whether listening keeps the event loop alive; at first it does. */
  set referenced(referenced: boolean) {
    this.#referenced = referenced
    for (const listener of this.#listeners)
      if (referenced) listener.ref()
      else listener.unref()
  }

  /** What the server has places for where it listens now. */
  get budget(): Budget {
    return this.#budget
  }

  /** Why it has fewer places than it was told to have; undefined: it has them. */
  get shortage(): string | undefined {
    const { sessions, dataConnections } = this.#budget
    const { maxSessions } = this.#host
    return sessions >= maxSessions
      ? undefined
      : `RLIMIT_NOFILE ${this.#descriptors.limit} leaves places for ${sessions} sessions of ${maxSessions} and for ${dataConnections} data connections; raise "ulimit -n", or LimitNOFILE= of its unit`
  }

  #sayStalled(err: unknown): void {
    const now = performance.now()
    if (now - this.#saidStalled < STALLED_EVERY_MS) return
    this.#saidStalled = now
    this.#host.log.error({ err }, 'connections wait')
  }

  #divide(): Budget {
    return budgetOf(this.#descriptors, {
      sessions: this.#host.maxSessions,
      listeners: this.#listeners.length,
      descriptorsEach: Math.max(1, ...[...this.#providers].map((provider) => DESCRIPTORS_EACH[provider])),
      descriptorsOfSlabs: this.#providers.has('shm') ? this.#host.lending.store.total : 0,
    })
  }

  admit(connection: ControlConnection, pending = this.#admission.enter()): void {
    const handshake = new SessionHandshake(this.#host, this.#sessions, connection, {
      belong: (session) => this.#admission.belong(pending, session),
      leave: () => this.#admission.leave(pending),
    })
    pending.accepted(handshake)
    // It may have begun to end while this one was being accepted.
    if (this.#closed) handshake.close()
  }

  async #onRequest(request: ConnectionRequest): Promise<void> {
    const data = this.#sessions.ofData(request.privateData)
    if (data?.session) return data.session.acceptData(request, data.takeOver)
    if (data)
      return this.#admission.turnAway(request, 'EACCES', 'it belongs to no session', 'data connection')
    if (this.#closed) return request.reject()
    return this.#admission.admit(request, (connection, pending) => this.admit(connection, pending))
  }

  /** Stops listening. */
  close(reason: string): void {
    this.#closed = true
    for (const listener of this.#listeners) listener.close()
    this.#admission.close(reason)
  }
}
