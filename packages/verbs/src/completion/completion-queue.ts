import { onAbort } from '../base/abort.js'
import { integerInRange } from '../base/arguments.js'
import { deferred } from '../base/deferred.js'
import { calling, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { Context } from '../device/context.js'
import { native } from '../native.js'
import { CompletionArray } from './completion-array.js'
import type { CompletionChannel } from './completion-channel.js'
import {
  COMPLETED_OPCODES,
  type CompletedOpcode,
  type CompletionStatus,
  STATUSES,
  type WorkCompletion,
} from './work-completion.js'

/** What {@link Context.createCompletionQueue} takes. */
export interface CompletionQueueOptions {
  /** how many completions it can hold; at least the sum of the depths of the queues that feed it */
  readonly entries: number
  /** channel that receives armed notifications; needed for {@link CompletionQueue.wait} */
  readonly channel?: CompletionChannel | undefined
  /**
   * Software providers only. `automatic` (default): a provider thread moves data. `manual`: the thread that polls this
   * queue, or waits on its channel, moves data, which is faster; the caller must do so.
   */
  readonly progress?: 'automatic' | 'manual' | undefined
  /**
   * Stamp each completion (ibv_create_cq_ex(3)): with the device's own clock or with the time of day.
   * EOPNOTSUPP where the device cannot (`capabilities.timestamps`)
   */
  readonly timestamps?: 'device' | 'wallclock' | undefined
}

const TIMESTAMPS = { none: 0, device: 1, wallclock: 2 } as const

/** A completion queue (ibv_cq). */
export class CompletionQueue extends Resource {
  /** @internal */
  override readonly identity: bigint
  /** the device */
  readonly context: Context
  /** where armed notifications go */
  readonly channel: CompletionChannel | undefined
  #wake: ((failure?: unknown) => void) | undefined

  /** @internal made by {@link Context.createCompletionQueue} */
  constructor(context: Context, options: CompletionQueueOptions) {
    const { entries, channel, progress = 'automatic', timestamps = 'none' } = options
    integerInRange('the entries of a completion queue', entries, 1, 2 ** 31 - 1)
    super(
      calling(context.description, () =>
        native.createCq(
          context.handle,
          entries,
          channel?.handle,
          progress === 'manual',
          TIMESTAMPS[timestamps],
        ),
      ),
      channel === undefined ? [context] : [context, channel],
    )
    this.context = context
    this.channel = channel
    this.identity = native.cqIdentity(this.handle)
  }

  get description(): string {
    return `completion queue of ${this.context.description}`
  }

  /** How many completions it can hold, as granted by the device. */
  get entries(): number {
    return native.cqEntries(this.handle)
  }

  /**
   * Resizes the queue (ibv_resize_cq(3)); its completions stay.
   * @throws VerbsError EINVAL: it holds more completions, or the size exceeds the device's limit; EOPNOTSUPP: the device cannot
   *   (`capabilities.resize`)
   */
  resize(entries: number): void {
    integerInRange('the entries of a completion queue', entries, 1, 2 ** 31 - 1)
    calling(this.description, () => native.resizeCq(this.handle, entries))
  }

  /** Completions in an ArrayBuffer, polled without allocating. @param capacity of one poll, 1…256 */
  createCompletionArray(capacity: number): CompletionArray {
    return new CompletionArray(this, capacity)
  }

  /** Polls up to `max` completions, at most 256 (ibv_poll_cq(3)); returns an empty array if there are none. */
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
   * Waits for the first completion and returns up to `max`. Only one wait at a time.
   * @throws UsageError without a channel; the signal's reason when aborted; VerbsError when no more completions can
   * arrive, ENODEV: the device is gone
   */
  async wait(max = 16, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<WorkCompletion[]> {
    const channel = this.channel
    if (channel === undefined) throw new UsageError(`${this.description} has no completion channel`)
    if (this.#wake !== undefined) throw new UsageError(`${this.description} is already waited for`)
    for (;;) {
      signal?.throwIfAborted()
      const ready = this.poll(max)
      if (ready.length > 0) return ready
      const { promise, resolve, reject } = deferred<void>()
      const abort = () => reject(signal?.reason)
      let waits = false
      this.#wake = (failure) => (failure === undefined ? resolve() : reject(failure))
      const stop = onAbort(signal, abort)
      try {
        channel.subscribe(this, (failure) => this.#wake?.(failure))
        channel.beginWait()
        waits = true
        this.requestNotification()
        // Completions between the poll above and the arming raise no event: poll once more.
        const raced = this.poll(max)
        if (raced.length > 0) return raced
        await promise
      } finally {
        if (waits) channel.endWait()
        stop()
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
