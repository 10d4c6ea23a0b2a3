import { copyOfBytes, integerInRange } from '../base/arguments.js'
import { calling, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { CompletionQueue } from '../completion/completion-queue.js'
import type { ConnectionId } from '../connection/connection-id.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import type { MemoryRegion } from '../memory/memory-region.js'
import { native } from '../native.js'
import {
  nativeAttributes,
  type QueuePairAttributes,
  type QueuePairQuery,
  type QueuePairState,
  type QueuePairType,
  queryOf,
  STATES,
  TYPES,
} from './queue-pair-state.js'
import type { SharedReceiveQueue } from './shared-receive-queue.js'
import {
  nativeReceiveWorkRequest,
  nativeSendWorkRequest,
  type ReceiveWorkRequest,
  type SendWorkRequest,
} from './work-request.js'
import { ReceiveSlots, SendSlots } from './work-request-slots.js'

/** What {@link ConnectionId.createQueuePair} takes. */
export interface QueuePairOptions {
  /** where sends complete */
  readonly sendQueue: CompletionQueue
  /** default: the same as `sendQueue` */
  readonly receiveQueue?: CompletionQueue | undefined
  /** receives come from here instead of a queue of the queue pair's own */
  readonly sharedReceiveQueue?: SharedReceiveQueue | undefined
  /** sends outstanding, default 128 */
  readonly maxSend?: number | undefined
  /** receives outstanding, default 128 */
  readonly maxReceive?: number | undefined
  /** scatter/gather elements of one send, default 1 */
  readonly maxSendElements?: number | undefined
  /** scatter/gather elements of one receive, default 1 */
  readonly maxReceiveElements?: number | undefined
  /** bytes requested for inline sends, default 64; {@link QueuePair.maxInlineData} has the granted number */
  readonly maxInlineData?: number | undefined
  /** complete every send, whatever its `signaled` says */
  readonly signalAll?: boolean | undefined
}

/** What {@link ProtectionDomain.createQueuePair} takes. */
export interface UnconnectedQueuePairOptions extends QueuePairOptions {
  /** default `rc` */
  readonly type?: QueuePairType | undefined
}

/**
 * A queue pair (ibv_qp). Usually it is reliable and created by {@link ConnectionId.createQueuePair}, and its connection id
 * connects it. {@link ProtectionDomain.createQueuePair} creates one whose states the program changes itself with
 * {@link modify}.
 */
export class QueuePair extends Resource {
  /** @internal */
  override readonly identity: bigint
  /** 24 bits; what peers and completions call it */
  readonly number: number

  /** how it is connected */
  readonly type: QueuePairType
  /** bytes that an inline send may carry, as granted by the device */
  readonly maxInlineData: number

  /** @internal made by {@link ConnectionId.createQueuePair} and {@link ProtectionDomain.createQueuePair} */
  constructor(
    id: ConnectionId | undefined,
    protectionDomain: ProtectionDomain,
    options: UnconnectedQueuePairOptions,
  ) {
    const { sendQueue, receiveQueue = sendQueue, sharedReceiveQueue, type = 'rc' } = options
    if (!(type in TYPES)) throw new UsageError(`a queue pair is rc, uc or ud, not "${type}"`)
    super(
      calling((id ?? protectionDomain).description, () =>
        native.createQp(
          id?.handle,
          protectionDomain.handle,
          sendQueue.handle,
          receiveQueue.handle,
          sharedReceiveQueue?.handle,
          {
            type: TYPES[type],
            maxSend: integerInRange('maxSend', options.maxSend ?? 128),
            maxReceive:
              sharedReceiveQueue === undefined ? integerInRange('maxReceive', options.maxReceive ?? 128) : 0,
            maxSendSge: integerInRange('maxSendElements', options.maxSendElements ?? 1),
            maxReceiveSge:
              sharedReceiveQueue === undefined
                ? integerInRange('maxReceiveElements', options.maxReceiveElements ?? 1)
                : 0,
            maxInline: integerInRange('maxInlineData', options.maxInlineData ?? 64),
            signalAll: options.signalAll ?? false,
          },
        ),
      ),
      [
        ...new Set([
          ...(id === undefined ? [] : [id]),
          protectionDomain,
          sendQueue,
          receiveQueue,
          ...(sharedReceiveQueue === undefined ? [] : [sharedReceiveQueue]),
        ]),
      ],
    )
    const info = native.qpInfo(this.handle)
    this.number = info.number
    this.type = type
    this.maxInlineData = info.maxInline
    this.identity = info.identity
  }

  get description(): string {
    return `queue pair ${this.number}`
  }

  /** Where it is in the life of a queue pair (ibv_query_qp(3)). */
  get state(): QueuePairState {
    return STATES[native.qpInfo(this.handle).state] ?? 'unknown'
  }

  /**
   * Posts work requests in order, ringing the doorbell once (ibv_post_send(3)).
   * @throws VerbsError ENOMEM: the send queue is full; EINVAL: a request the device refuses; EOPNOTSUPP: an
   *   operation the device does not have. The requests before the refused one are posted.
   */
  postSend(...requests: readonly SendWorkRequest[]): void {
    const prepared = requests.map(nativeSendWorkRequest)
    try {
      calling(this.description, () => native.postSend(this.handle, prepared))
    } finally {
      // Also after a failure: the requests before the refused one were posted.
      for (const [i, request] of requests.entries()) {
        const key = prepared[i]?.bind?.key
        if (request.opcode === 'bind-memory-window' && key === native.mwKey(request.window.handle))
          request.window.bound(key, request.region, this)
      }
    }
  }

  /** Posts receive buffers (ibv_post_recv(3)). @throws VerbsError ENOMEM: the receive queue is full */
  postReceive(...requests: readonly ReceiveWorkRequest[]): void {
    const prepared = requests.map(nativeReceiveWorkRequest)
    calling(this.description, () => native.postReceive(this.handle, prepared, false))
  }

  /**
   * Sends in an ArrayBuffer, to be posted without allocating. @param count slots, from 1
   * @throws VerbsError EINVAL: on a queue pair of type `ud`
   */
  createSendSlots(count: number, regions: readonly MemoryRegion[]): SendSlots {
    return new SendSlots(this, count, regions)
  }

  /** Receives in an ArrayBuffer, to be posted without allocating. @param count slots, from 1 */
  createReceiveSlots(count: number, regions: readonly MemoryRegion[]): ReceiveSlots {
    return new ReceiveSlots(this, count, regions, false)
  }

  /**
   * Changes state and attributes (ibv_modify_qp(3)).
   * @throws UsageError naming each attribute that the transition needs and that is missing; VerbsError
   *   EOPNOTSUPP: queue pairs of this device are connected by a connection id (iWARP, shm)
   */
  modify(attributes: QueuePairAttributes): void {
    const prepared = nativeAttributes(this.type, this.state, attributes)
    calling(this.description, () => native.modifyQp(this.handle, prepared))
  }

  /** ibv_query_qp(3) */
  query(): QueuePairQuery {
    return queryOf(calling(this.description, () => native.queryQp(this.handle)))
  }

  /** Moves the queue pair to the error state: everything outstanding completes as `flushed`. */
  moveToError(): void {
    calling(this.description, () => native.qpToError(this.handle))
  }

  /**
   * Receives the datagrams of a multicast group (ibv_attach_mcast(3)); type `ud` only.
   * @param gid the group's 16 bytes @param lid the group's LID on InfiniBand, 0 on RoCE
   */
  attachMulticast(gid: Uint8Array, lid = 0): void {
    const group = copyOfBytes('gid', gid)
    calling(this.description, () => native.attachMulticast(this.handle, group, lid))
  }

  /** ibv_detach_mcast(3) */
  detachMulticast(gid: Uint8Array, lid = 0): void {
    const group = copyOfBytes('gid', gid)
    calling(this.description, () => native.detachMulticast(this.handle, group, lid))
  }
}
