import { calling, named } from '../base/errors.js'
import { HoldingResource } from '../base/holding-resource.js'
import type { Context } from '../device/context.js'
import { native } from '../native.js'
import type { CompletionQueue } from './completion-queue.js'

/** Called at each event of a queue; with a failure when none will come any more. */
type Waiter = (failure?: unknown) => void

/**
 * Wakes a waiter when an armed completion queue gets a completion (ibv_comp_channel). It keeps the event loop alive while
 * there is a waiter.
 */
export class CompletionChannel extends HoldingResource {
  /** the device */
  readonly context: Context
  readonly #waiters = new Map<bigint, Waiter>()
  #watching = false
  #waiting = 0
  /** why there are no more events */
  #lost: unknown

  /** @internal made by {@link Context.createCompletionChannel} */
  constructor(context: Context) {
    super(
      calling(context.description, () => native.createChannel(context.handle)),
      [context],
    )
    this.context = context
  }

  get description(): string {
    return `completion channel of ${this.context.description}`
  }

  protected holdLoop(holds: boolean): void {
    native.setChannelRef(this.handle, holds)
  }

  /** @internal a wait begins, of a queue that is subscribed */
  beginWait(): void {
    this.#waiting++
    this.waits = true
  }

  /** @internal a wait is over */
  endWait(): void {
    this.#waiting--
    this.waits = this.#waiting > 0
  }

  /**
   * @internal calls `wake` at each event of `queue`; used by {@link CompletionQueue.wait}
   * @throws VerbsError ENODEV: the device is gone
   */
  subscribe(queue: CompletionQueue, wake: Waiter): void {
    if (this.#lost !== undefined) throw this.#lost
    this.#waiters.set(native.cqIdentity(queue.handle), wake)
    if (this.#watching) return
    calling(this.description, () =>
      native.watchChannel(this.handle, (cq, failure) => {
        if (cq !== undefined) this.#waiters.get(cq)?.()
        else this.#lose(failure)
      }),
    )
    this.#watching = true
  }

  #lose(failure: unknown): void {
    this.#lost = named(this.description, failure)
    for (const wake of this.#waiters.values()) wake(this.#lost)
  }

  /** @internal forgets a queue that is being closed */
  unsubscribe(queue: CompletionQueue): void {
    this.#waiters.delete(native.cqIdentity(queue.handle))
  }
}
