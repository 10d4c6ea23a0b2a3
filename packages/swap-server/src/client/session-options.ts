import { milliseconds, millisecondsOrNone } from '@rdmakit/verbs/internal'
import type { Key } from '../protocol/key-file.js'
import type { TakeOver } from '../protocol/take-over-number.js'

export interface SessionOptions {
  /** the client's name in the server's log */
  readonly client?: string | undefined
  /** tenant to allocate memory as, default `default` */
  readonly tenant?: string | undefined
  /**
   * The tenant's key. A server that does not prove that it has the key too is refused. A function is called for each
   * session, so that the key can be exchanged while the program runs. Default: none.
   */
  readonly key?: (Key | (() => Key)) | undefined
  /** milliseconds above 0 between heartbeats, default 1000, and at least three in the server's session timeout */
  readonly heartbeatInterval?: number | undefined
  /** milliseconds above 0 without an answer after which the server counts as lost, default 3000 */
  readonly heartbeatTimeout?: number | undefined
  /**
   * milliseconds for which the session and its slabs should outlive this process or the connection, so that
   * `SwapServerSession.resume` finds them; the server may grant less; at most 2^31 − 1, which is what Infinity
   * counts as; default 0: it ends with its connection
   */
  readonly linger?: number | undefined
  /**
   * the take-over of its volume by this process: a server refuses a session to an earlier take-over than the one that had
   * it last; default {@link NO_TAKE_OVER}
   */
  readonly takeOver?: TakeOver | undefined
  /** of `SwapServerSession.resume`: only if no other client has the session, else EBUSY; default false */
  readonly unattended?: boolean | undefined
  /** room for an answer to `SwapServerSession.query` of a server with thousands of sessions; default false */
  readonly largeAnswers?: boolean | undefined
  readonly signal?: AbortSignal | undefined
}

/** @internal @throws UsageError: one of the times is none */
export function checkTimes({ heartbeatInterval, heartbeatTimeout, linger = 0 }: SessionOptions): void {
  if (heartbeatInterval !== undefined) milliseconds('heartbeatInterval', heartbeatInterval)
  if (heartbeatTimeout !== undefined) milliseconds('heartbeatTimeout', heartbeatTimeout)
  millisecondsOrNone('linger', linger)
}

/** What `SwapServerSession.list` takes. */
export interface ListOptions {
  /** slabs that the session may have; a server that lists more is not believed; default: what the server says it has */
  readonly most?: number | undefined
  /** looked at between two requests to the server */
  readonly signal?: AbortSignal | undefined
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
