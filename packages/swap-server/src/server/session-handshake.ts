import { printable } from '@rdmakit/operator-kit'
import type { ControlConnection } from '../protocol/control-connection.js'
import type { control } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import { type ProvenClient, ServerAuthentication } from './admission/authentication.js'
import { type Asking, answerRequest } from './control-request.js'
import type { SessionHost } from './session-host.js'
import type { Sessions } from './sessions.js'

/** The place of a connection among those whose clients have not shown who they are. */
export interface PendingPlace {
  /** Its client has shown that it belongs to a session: no crowd takes its place, and a session has one. */
  belong(session: string): void
  /** Idempotent. */
  leave(): void
}

type Answer = control.Response.$Properties | Promise<control.Response.$Properties>

/**
 * A control connection until its client has shown who it is: Hello, and with keys Challenge and Proof. Behind that a session
 * has the connection, a new one or the one that the client comes back to. Until then there is no protection domain, and no
 * memory but the connection's own.
 */
export class SessionHandshake {
  readonly client = 'a client that has not identified itself'
  readonly #sessions: Sessions
  readonly #connection: ControlConnection
  readonly #place: PendingPlace
  readonly #authentication: ServerAuthentication
  readonly #peer: string
  /** whom it says to be */
  #claims: Asking['claims']
  /** A session has the connection. */
  #handedOver = false
  #over = false

  /** @param place of the connection, until a session has it or it is gone */
  constructor(host: SessionHost, sessions: Sessions, connection: ControlConnection, place: PendingPlace) {
    this.#sessions = sessions
    this.#connection = connection
    this.#place = place
    this.#peer = connection.peerUri
    this.#authentication = new ServerAuthentication(host.tenants, connection)
    connection.handle(({ data }) =>
      answerRequest(host, this, data, (request) => this.#dispatch(request, data)),
    )
    void connection.closed.then(() => {
      if (!this.#over) this.abort()
    })
  }

  get actor(): Asking['actor'] {
    return { tenant: undefined, keyId: undefined, client: this.client, peer: this.#peer }
  }

  get claims(): Asking['claims'] {
    return this.#claims
  }

  /** One try: it ends when the answer is on its way. */
  failed(): void {
    setImmediate(() => this.close())
  }

  /** Ends its connection, behind messages on their way there; it keeps its place until that is gone. Idempotent. */
  close(): void {
    if (this.#over) return
    this.#over = true
    void this.#connection.close().finally(() => this.#place.leave())
  }

  /** Breaks its connection, whatever is on its way. */
  abort(): void {
    if (this.#handedOver) return
    this.#over = true
    void this.#connection.close({ drain: false })
    this.#place.leave()
  }

  async #dispatch(request: control.Request, bytes: Uint8Array): Promise<control.Response.$Properties> {
    this.#requireOpen()
    if (request.hello) return this.#greet(this.#hear(request.hello, bytes))
    if (request.proof) return this.#greet(this.#authentication.proof(request.proof))
    throw new Refusal('EPROTO', 'a session starts with hello')
  }

  #requireOpen(): void {
    if (this.#over) throw new Refusal('ECANCELED', 'the session has ended')
  }

  #hear(hello: control.Hello.$Properties, request: Uint8Array): ReturnType<ServerAuthentication['hello']> {
    this.#claims = {
      tenant: printable(hello.tenant ?? '').slice(0, 64),
      keyId: printable(hello.keyId ?? '').slice(0, 64),
      client: printable(hello.client ?? '').slice(0, 256),
    }
    return this.#authentication.hello(hello, request)
  }

  /** At once where that is possible: what the client asks for behind it is answered behind it. */
  #greet(step: ReturnType<ServerAuthentication['hello']>): Answer {
    if ('challenge' in step) return { challenge: step.challenge }
    // Work that waits for nothing runs now, and a refusal by it is treated like an immediate one.
    const refuse = (failure: unknown) => {
      throw failure instanceof Refusal && step.hello.resume != null
        ? new Refusal(failure.code, failure.message, step.proveRefusal(failure.code))
        : failure
    }
    try {
      const answer = this.#enter(step)
      return answer instanceof Promise ? answer.catch(refuse) : answer
    } catch (failure) {
      return refuse(failure)
    }
  }

  #enter(step: ProvenClient): Answer {
    const { resume } = step.hello
    const takeOver = step.takeOver()
    if (resume == null) {
      const session = this.#sessions.open(step)
      this.#handOver()
      return step.answer(session.welcome('session-opened'))
    }
    const named = this.#sessions.named(Number(resume.session ?? 0), resume.token ?? new Uint8Array())
    const gone = () =>
      new Refusal('ENOENT', 'there is no such session: it ended, or the server was restarted')
    if (named === undefined || named.closed) throw gone()
    // Not ENOENT: a client with the wrong key file would take its memory for lost.
    if (named.tenant !== step.tenant.name) throw new Refusal('EACCES', 'the session is of another tenant')
    if (named.context !== this.#connection.context)
      throw new Refusal(
        'EXDEV',
        `the session is on the device ${named.context.deviceName}; connect to that one`,
      )
    this.#place.belong(String(named.id))
    // Before anything of the current client is ended, and of simultaneous claims the highest wins.
    const claim = () => {
      named.claim(takeOver, step.hello)
      this.#sessions.requirePlaceToResume(named, step)
    }
    claim()
    const goOn = () => {
      this.#requireOpen()
      if (named.closed) throw gone()
      claim()
      this.#handOver()
      return step.answer(named.resume(step))
    }
    return named.endData()?.then(goOn) ?? goOn()
  }

  #handOver(): void {
    this.#handedOver = true
    this.#over = true
    this.#place.leave()
  }
}
