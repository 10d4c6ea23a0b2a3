import type { CompletionQueue } from './completion-queue.js'
import type { Context } from './context.js'
import { calling } from './errors.js'
import { native } from './native.js'
import { Resource } from './resource.js'

/** Wakes a waiter when an armed completion queue gets a completion (ibv_comp_channel). */
export class CompletionChannel extends Resource {
  /** the device */
  readonly context: Context
  readonly #waiters = new Map<bigint, () => void>()
  #watching = false

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

  /** @internal calls `wake` at each event of `queue`; used by {@link CompletionQueue.wait} */
  subscribe(queue: CompletionQueue, wake: () => void): void {
    this.#waiters.set(native.cqIdentity(queue.handle), wake)
    if (this.#watching) return
    this.#watching = true
    const waiters = this.#waiters
    calling(this.description, () => native.watchChannel(this.handle, (cq) => waiters.get(cq)?.()))
  }

  /** @internal forgets a queue that is being closed */
  unsubscribe(queue: CompletionQueue): void {
    this.#waiters.delete(native.cqIdentity(queue.handle))
  }
}
