import type { CompletionChannel } from './completion-channel.js'
import type { Context } from './context.js'
import { deferred } from './deferred.js'
import { calling, UsageError } from './errors.js'
import { native } from './native.js'
import { Resource } from './resource.js'
import {
  COMPLETED_OPCODES,
  type CompletedOpcode,
  type CompletionStatus,
  STATUSES,
  type WorkCompletion,
} from './work-completion.js'

export interface CompletionQueueOptions {
  /** how many completions it can hold; at least the sum of the depths of the queues that feed it */
  readonly entries: number
  /** where armed notifications go; needed for {@link CompletionQueue.wait} */
  readonly channel?: CompletionChannel
  /**
   * Software providers only. `automatic` (default): a provider thread moves data. `manual`: whoever
   * polls this queue, or waits on its channel, does, which is faster; the caller promises to do so.
   */
  readonly progress?: 'automatic' | 'manual'
}

/** A completion queue (ibv_cq). */
export class CompletionQueue extends Resource {
  readonly context: Context
  readonly channel: CompletionChannel | undefined
  #wake: (() => void) | undefined

  /** @internal made by {@link Context.createCompletionQueue} */
  constructor(context: Context, { entries, channel, progress = 'automatic' }: CompletionQueueOptions) {
    if (!Number.isInteger(entries) || entries < 1)
      throw new UsageError(`a completion queue needs a whole number of entries from 1, not ${entries}`)
    super(
      calling(context.description, () =>
        native.createCq(context.handle, entries, channel?.handle, progress === 'manual'),
      ),
      channel === undefined ? [context] : [context, channel],
    )
    this.context = context
    this.channel = channel
  }

  get description(): string {
    return `completion queue of ${this.context.description}`
  }

  /** Takes up to `max` completions (ibv_poll_cq(3)); an empty array when there is none. */
  poll(max = 16): WorkCompletion[] {
    return calling(this.description, () => native.pollCq(this.handle, max)).map((completion) => ({
      ...completion,
      status: (STATUSES[completion.status] ?? 'general-error') as CompletionStatus,
      opcode: (COMPLETED_OPCODES as Record<number, CompletedOpcode>)[completion.opcode],
    }))
  }

  /** Arms the queue: the next completion raises one event on the channel (ibv_req_notify_cq(3)). */
  requestNotification(solicitedOnly = false): void {
    calling(this.description, () => native.requestNotification(this.handle, solicitedOnly))
  }

  /**
   * Takes up to `max` completions, waiting for the first. One wait at a time.
   * @throws UsageError without a channel; the signal's reason when aborted
   */
  async wait(max = 16, { signal }: { signal?: AbortSignal } = {}): Promise<WorkCompletion[]> {
    const channel = this.channel
    if (channel === undefined) throw new UsageError(`${this.description} has no completion channel`)
    if (this.#wake !== undefined) throw new UsageError(`${this.description} is already waited for`)
    for (;;) {
      signal?.throwIfAborted()
      const ready = this.poll(max)
      if (ready.length > 0) return ready
      const { promise, resolve, reject } = deferred<void>()
      const abort = () => reject(signal?.reason)
      this.#wake = resolve
      channel.subscribe(this, () => this.#wake?.())
      signal?.addEventListener('abort', abort, { once: true })
      try {
        this.requestNotification()
        // What came between the poll above and the arming raises no event: look once more.
        const raced = this.poll(max)
        if (raced.length > 0) return raced
        await promise
      } finally {
        signal?.removeEventListener('abort', abort)
        this.#wake = undefined
      }
    }
  }

  override close(): void {
    this.#wake?.()
    if (!this.closed) this.channel?.unsubscribe(this)
    super.close()
  }
}
