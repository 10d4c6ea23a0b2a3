import { availableParallelism } from 'node:os'
import { type Context, UsageError } from '@rdmakit/verbs'
import { Poller } from './poller.js'
import type { PollerMode, PollerOptions } from './poller-options.js'

/** Options of a {@link PollerGroup}: its pollers differ only in their CPU. */
export interface PollerGroupOptions extends Omit<PollerOptions, 'cpu' | 'mode'> {
  /** default `adaptive`, because pollers without a thread would all share the one event loop */
  readonly mode?: PollerMode | undefined
  /** number of pollers, 1 … 64; default: the number of `cpus`, else of the CPUs that the process may use */
  readonly pollers?: number | undefined
  /** CPUs to pin the threads to, one each, the first again when there are more threads; default none */
  readonly cpus?: readonly number[] | undefined
}

const MAX_POLLERS = 64

/**
 * Several pollers of one device, each with its own completion queue (and thread). Connections are spread over them, so
 * completions of different connections are processed in parallel. A connection stays with its first poller.
 */
export class PollerGroup {
  /** the device */
  readonly context: Context
  /** all of them, for as long as the group is */
  readonly pollers: readonly Poller[]

  /** @throws UsageError for an option out of range; VerbsError when the device has not the resources */
  constructor(context: Context, { pollers, cpus, mode = 'adaptive', ...others }: PollerGroupOptions = {}) {
    const options = { ...others, mode }
    const count = pollers ?? cpus?.length ?? Math.min(availableParallelism(), MAX_POLLERS)
    if (!Number.isInteger(count) || count < 1 || count > MAX_POLLERS)
      throw new UsageError(`pollers must be a whole number from 1 to ${MAX_POLLERS}, not ${count}`)
    if (cpus?.length === 0) throw new UsageError('cpus is empty')
    const made: Poller[] = []
    try {
      for (let at = 0; at < count; at++) {
        const cpu = cpus?.[at % cpus.length]
        made.push(new Poller(context, cpu === undefined ? options : { ...options, cpu }))
      }
    } catch (failure) {
      for (const poller of made) poller.close()
      throw failure
    }
    this.context = context
    this.pollers = made
  }

  /** Connections that its pollers serve now. */
  get connections(): number {
    return this.pollers.reduce((sum, poller) => sum + poller.connections, 0)
  }

  /** True once {@link close} has ended them. */
  get closed(): boolean {
    return this.pollers.every((poller) => poller.closed)
  }

  /** The poller that serves the fewest connections. */
  leastLoaded(): Poller {
    return this.pollers.reduce((least, poller) => (poller.connections < least.connections ? poller : least))
  }

  /**
   * Ends all its pollers, or none.
   * @throws UsageError when connections are left
   */
  close(): void {
    const { connections } = this
    if (connections > 0)
      throw new UsageError(`the pollers serve ${connections} connections; close them first`)
    for (const poller of this.pollers) poller.close()
  }

  [Symbol.dispose](): void {
    this.close()
  }
}

/**
 * The poller of a connection: a mode, whose poller the device's connections share; a poller; a group; or a function that
 * returns any of these for the connection's device, for a server that listens on several devices. `undefined` is the
 * default mode.
 */
export type PollerChoice =
  | PollerMode
  | Poller
  | PollerGroup
  | ((context: Context) => PollerMode | Poller | PollerGroup | undefined)

/**
 * @internal
 * @throws UsageError for a mode that there is not, or when what was chosen is of another device
 */
export function pollerFor(choice: PollerChoice | undefined, context: Context): Poller {
  const chosen = typeof choice === 'function' ? choice(context) : choice
  if (chosen === undefined || typeof chosen === 'string') return Poller.shared(context, chosen)
  if (!(chosen instanceof Poller || chosen instanceof PollerGroup))
    throw new UsageError('poller must be a mode, a Poller, a PollerGroup, or a function that returns one')
  if (chosen.context !== context)
    throw new UsageError(
      `the poller belongs to ${chosen.context.description}, the connection to ${context.description}`,
    )
  return chosen instanceof PollerGroup ? chosen.leastLoaded() : chosen
}
