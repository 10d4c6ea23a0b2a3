import type { Key } from '../protocol/key-file.js'
import type { TakeOver } from '../protocol/take-over-number.js'

export interface SessionOptions {
  /** the client's name in the server's log */
  readonly client?: string
  /** tenant to allocate memory as, default `default` */
  readonly tenant?: string
  /**
   * The tenant's key. A server that does not prove that it has the key too is refused. A function is called for each
   * session, so that the key can be exchanged while the program runs. Default: none.
   */
  readonly key?: Key | (() => Key)
  /** milliseconds between heartbeats, default 1000, and at least three in the server's session timeout */
  readonly heartbeatInterval?: number
  /** milliseconds without an answer after which the server counts as lost, default 3000 */
  readonly heartbeatTimeout?: number
  /**
   * milliseconds for which the session and its slabs should outlive this process or the connection, so that
   * `SwapServerSession.resume` finds them; the server may grant less; default 0
   */
  readonly linger?: number
  /**
   * the take-over of its volume by this process: a server refuses a session to an earlier take-over than the one that had
   * it last; default {@link NO_TAKE_OVER}
   */
  readonly takeOver?: TakeOver
  /** of `SwapServerSession.resume`: only if no other client has the session, else EBUSY; default false */
  readonly unattended?: boolean
  /** room for an answer to `SwapServerSession.query` of a server with thousands of sessions; default false */
  readonly largeAnswers?: boolean
  readonly signal?: AbortSignal
}

/** What `SwapServerSession.list` takes. */
export interface ListOptions {
  /** slabs that the session may have; a server that lists more is not believed; default: what the server says it has */
  readonly most?: number
  /** looked at between two requests to the server */
  readonly signal?: AbortSignal
}

/** The traffic of this end with a server since the session was opened; it never decreases. */
export interface SessionUse {
  readonly bytes: number
  readonly operations: number
}

/** Identifies a session for `SwapServerSession.resume`. Keep it as secret as the slabs' contents. */
export interface SessionIdentity {
  /** of the server: another one has other, empty memory */
  readonly epoch: string
  readonly session: number
  readonly token: Uint8Array
}
