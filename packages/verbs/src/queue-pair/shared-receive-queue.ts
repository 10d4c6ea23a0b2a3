import { integerInRange } from '../base/arguments.js'
import { calling } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import type { MemoryRegion } from '../memory/memory-region.js'
import { native } from '../native.js'
import { nativeReceiveWorkRequest, type ReceiveWorkRequest } from './work-request.js'
import { ReceiveSlots } from './work-request-slots.js'

/** What {@link ProtectionDomain.createSharedReceiveQueue} takes. */
export interface SharedReceiveQueueOptions {
  /** receives outstanding, default 128 */
  readonly maxReceive?: number | undefined
  /** scatter/gather elements of one receive, default 1 */
  readonly maxReceiveElements?: number | undefined
}

/**
 * Receives that many queue pairs take from (ibv_srq), first come first served. Their completions come to
 * each queue pair's own receive completion queue.
 */
export class SharedReceiveQueue extends Resource {
  /** @internal */
  override readonly identity: bigint
  /** whose regions its receives may name */
  readonly protectionDomain: ProtectionDomain

  /** @internal made by {@link ProtectionDomain.createSharedReceiveQueue} */
  constructor(protectionDomain: ProtectionDomain, options: SharedReceiveQueueOptions) {
    const { maxReceive = 128, maxReceiveElements = 1 } = options
    super(
      calling(protectionDomain.description, () =>
        native.createSrq(
          protectionDomain.handle,
          integerInRange('maxReceive', maxReceive),
          integerInRange('maxReceiveElements', maxReceiveElements),
        ),
      ),
      [protectionDomain],
    )
    this.protectionDomain = protectionDomain
    this.identity = native.srqInfo(this.handle).identity
  }

  get description(): string {
    return `shared receive queue of ${this.protectionDomain.description}`
  }

  /** Receives outstanding at most, as granted by the device. */
  get maxReceive(): number {
    return native.srqInfo(this.handle).maxReceive
  }

  /** The limit that is armed (ibv_query_srq(3)), 0 when none is. */
  get limit(): number {
    return native.srqInfo(this.handle).limit
  }

  /** Posts receive buffers (ibv_post_srq_recv(3)). @throws VerbsError ENOMEM: the queue is full */
  postReceive(...requests: readonly ReceiveWorkRequest[]): void {
    const prepared = requests.map(nativeReceiveWorkRequest)
    calling(this.description, () => native.postReceive(this.handle, prepared, true))
  }

  /** Receives in an ArrayBuffer, to be posted without allocating. @param count slots, from 1 */
  createReceiveSlots(count: number, regions: readonly MemoryRegion[]): ReceiveSlots {
    return new ReceiveSlots(this, count, regions, true)
  }

  /**
   * Arms the limit (ibv_modify_srq(3)): when fewer than `receives` are left, the context's
   * `asyncEvents` has one `shared-receive-queue-limit-reached`, and the limit is off again.
   * @throws VerbsError EINVAL: more than the queue holds
   */
  armLimit(receives: number): void {
    integerInRange('a limit', receives)
    calling(this.description, () => native.setSrqLimit(this.handle, receives))
  }
}
