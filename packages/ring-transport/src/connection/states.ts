import type { VerbsError } from '@rdmakit/verbs'

/** Why a connection ended: `undefined` after an orderly close. */
export type CloseReason = VerbsError | undefined

/**
 * What a connection is doing. It begins `open` and ends either `closed` or `lost`:
 *
 * ```
 *  open ⇄ idle       idle: no message either way for `idleTimeout`
 *  open, idle → draining → closed | lost
 *  open, idle → lost (or closed, with close({ drain: false }))
 * ```
 *
 * `epoch` is the connection's number in its session, 0 without one.
 */
export type ConnectionState =
  | { readonly state: 'open'; readonly epoch: number }
  | { readonly state: 'idle'; readonly epoch: number }
  /** one end closes it gracefully: requests in flight finish, no new ones begin */
  | { readonly state: 'draining'; readonly epoch: number }
  /** one of the ends has closed it; {@link RingConnection.closed} resolves with `undefined` */
  | { readonly state: 'closed'; readonly epoch: number }
  /**
   * It broke; {@link RingConnection.closed} resolves with the same `reason`: ECONNRESET when the peer or
   * the queue pair broke it, ETIMEDOUT when the peer was silent for `deadAfter`, EPROTO when the
   * peer broke the protocol, ESTALE when a later epoch of its session connected.
   */
  | { readonly state: 'lost'; readonly epoch: number; readonly reason: VerbsError }
