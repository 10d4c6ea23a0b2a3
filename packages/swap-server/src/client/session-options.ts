import type { Key } from '../protocol/key-file.js'
import type { TakeOver } from '../protocol/take-over-number.js'

export interface SessionOptions {
  /** who we are, for the server's log */
  readonly client?: string
  /** whose memory we take, default `default` */
  readonly tenant?: string
  /**
   * What proves it. A server that does not prove to have it too is refused. A function is asked for each
   * session, so that a key can be exchanged while the program runs. Default: none.
   */
  readonly key?: Key | (() => Key)
  /** milliseconds between heartbeats, default 1000, and at least three in the server's session timeout */
  readonly heartbeatInterval?: number
  /** milliseconds without an answer after which the server counts as lost, default 3000 */
  readonly heartbeatTimeout?: number
  /**
   * milliseconds that the session, with its slabs, should outlive this process or the connection, so that
   * `SwapServerSession.resume` finds it; the server may grant less; default 0
   */
  readonly linger?: number
  /**
   * which take-over of its volume this process is: a server gives no session to one that comes before the one that
   * had it last; default {@link NO_TAKE_OVER}
   */
  readonly takeOver?: TakeOver
  /** of `SwapServerSession.resume`: only if no other client has the session, else EBUSY; default false */
  readonly unattended?: boolean
  /** room for an answer to `SwapServerSession.query` of a server with thousands of sessions; default false */
  readonly largeAnswers?: boolean
  readonly signal?: AbortSignal
}

/** What this end has moved to and from a server since the session was opened; it never falls. */
export interface SessionUse {
  readonly bytes: number
  readonly operations: number
}

/** What names a session to `SwapServerSession.resume`. Keep it as secret as the slabs' contents. */
export interface SessionIdentity {
  /** of the server: another one has other, empty memory */
  readonly epoch: string
  readonly session: number
  readonly token: Uint8Array
}
