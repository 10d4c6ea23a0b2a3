import { availableParallelism } from 'node:os'
import { type Context, UsageError } from '@rdmakit/verbs'
import { integerInRange } from '@rdmakit/verbs/internal'

/**
 * Which thread polls for completions, and how it waits for them. `caller`: {@link Poller.drain} on the calling thread, and
 * otherwise the event loop, which watches the completion channel; there is no other thread. `guarded`: the same, but a
 * thread takes over 5 to 10 ms after JavaScript began to compute, until JavaScript is back. In both, an event loop that has
 * nothing to do spins like `adaptive` before it sleeps, until it has something to do. In the other modes a thread always polls. `poll`: it spins and uses a full core. `event`: it sleeps on a completion channel. `adaptive`: it spins
 * for about the recent completion time, if that is short, then sleeps.
 */
export type PollerMode = (typeof POLLER_MODES)[number]
/** @internal In the order of `Mode` in native/ring/polling/waiting.h. */
export const POLLER_MODES = ['poll', 'event', 'adaptive', 'caller', 'guarded'] as const

export interface PollerOptions {
  /** default `guarded` */
  readonly mode?: PollerMode | undefined
  /** CPU to pin the thread to; default none */
  readonly cpu?: number | undefined
  /** longest spin before a sleep, in modes `adaptive`, `guarded` and `caller`, microseconds, 0 … 10000, default 50 */
  readonly spinMicroseconds?: number | undefined
  /** maximum number of connections, 1 … 16384, default 4096 */
  readonly maxConnections?: number | undefined
  /**
   * Entries of the completion queue. The depths of all connections must fit; a connection with default depths needs 279.
   * Default: 71424, for 256 connections, growing as needed up to the device's limit if the device can resize the queue
   * (ibv_resize_cq(3)).
   */
  readonly completionQueueEntries?: number | undefined
  /** messages that wait for JavaScript, a power of two from 64 to 65536, default 4096; more wait in their rings */
  readonly descriptors?: number | undefined
}

/** enough for the 256 connections that a server takes by default; more are made of them as they are needed */
const DEFAULT_ENTRIES = 256 * 279

/** @internal Options with their defaults, checked. */
export interface PollerSettings {
  readonly mode: PollerMode
  /** -1 for none */
  readonly cpu: number
  readonly spinMicroseconds: number
  readonly maxConnections: number
  readonly descriptors: number
  /** of the completion queue, and as many as it may have */
  readonly entries: number
  readonly mostEntries: number
}

/** @internal @throws UsageError naming the option that is out of range */
export function checked(context: Context, options: PollerOptions): PollerSettings {
  const { mode = 'guarded', cpu, spinMicroseconds = 50 } = options
  const { maxConnections = 4096, descriptors = 4096 } = options
  if (!POLLER_MODES.includes(mode)) throw new UsageError(`mode is ${POLLER_MODES.join(', ')}, not "${mode}"`)
  integerInRange('spinMicroseconds', spinMicroseconds, 0, 10_000)
  integerInRange('maxConnections', maxConnections, 1, 16_384)
  integerInRange('descriptors', descriptors, 64, 65_536)
  if ((descriptors & (descriptors - 1)) !== 0)
    throw new UsageError(`descriptors must be a power of two, not ${descriptors}`)
  if (cpu !== undefined) integerInRange('cpu', cpu, 0, 1023)
  const allowed = Number(context.queryDevice().max_cqe)
  const grows = options.completionQueueEntries === undefined && context.capabilities.resize
  const entries = options.completionQueueEntries ?? Math.min(DEFAULT_ENTRIES, allowed)
  integerInRange('completionQueueEntries', entries, 64, allowed)
  return {
    mode,
    cpu: cpu ?? -1,
    // With one CPU nothing completes while a thread beside the program's spins.
    spinMicroseconds: mode === 'adaptive' && availableParallelism() === 1 ? 0 : spinMicroseconds,
    maxConnections,
    descriptors,
    entries,
    mostEntries: grows ? allowed : entries,
  }
}
