// Options of calls of a connection, and of a client or a server, which pass them on.
import type { WaitOptions } from '@rdmakit/verbs'
import { integerInRange } from '@rdmakit/verbs/internal'

/** How a request is made. */
export interface RequestOptions extends WaitOptions {
  /** 32 bits for the peer's handler, which sees them as {@link RingMessage.immediate}; default 0 */
  readonly immediate?: number | undefined
}

export interface CloseOptions {
  /**
   * Let requests, handlers and messages in flight finish, also the peer's (default). False breaks the connection at
   * once.
   */
  readonly drain?: boolean | undefined
  /** maximum time for draining, milliseconds, default 5000; then the connection is broken */
  readonly timeout?: number | undefined
}

/** @internal @throws UsageError */
export function checkImmediate(immediate = 0): void {
  if (immediate !== immediate >>> 0) integerInRange('immediate', immediate, 0, 0xffff_ffff)
}

/** @internal of `drain`, which would take what has not come for any other number @throws UsageError */
export function checkDrainLimit(limit: number): void {
  integerInRange('limit', limit, 0, 0xffff_ffff)
}

/** @internal of {@link BatchOptions} @throws UsageError */
export function checkedLimit(limit: number): number {
  return integerInRange('limit', limit, 1, 65_536)
}
