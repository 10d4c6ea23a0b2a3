import type { CompletionQueue } from './completion-queue.js'
import type { ConnectionId } from './connection-id.js'
import { calling, UsageError } from './errors.js'
import { nativeSges, type ScatterGatherElement } from './memory-region.js'
import { type NativeSendWorkRequest, native } from './native.js'
import type { ProtectionDomain } from './protection-domain.js'
import { Resource } from './resource.js'

/** `enum ibv_wr_opcode` */
const OPCODES = {
  'rdma-write': 0,
  'rdma-write-with-immediate': 1,
  send: 2,
  'send-with-immediate': 3,
  'rdma-read': 4,
} as const

/** `enum ibv_send_flags` */
const FENCE = 1
const SIGNALED = 2
const SOLICITED = 4
const INLINE = 8

const STATES = ['reset', 'init', 'rtr', 'rts', 'sqd', 'sqe', 'error', 'unknown'] as const
export type QueuePairState = (typeof STATES)[number]

interface SendFlags {
  /** handed back in the completion, default 0 */
  readonly workRequestId?: bigint
  /** ask for a completion on success, default true */
  readonly signaled?: boolean
  /** raise an event on a peer that armed for solicited completions only */
  readonly solicited?: boolean
  /** copy the data while posting; at most {@link QueuePair.maxInlineData} bytes */
  readonly inline?: boolean
  /** wait for earlier RDMA READs first */
  readonly fence?: boolean
  readonly data?: readonly ScatterGatherElement[]
}

interface Remote {
  /** virtual address in the peer's memory */
  readonly remoteAddress: bigint
  readonly remoteKey: number
}

/** What {@link QueuePair.postSend} takes (ibv_send_wr). */
export type SendWorkRequest = SendFlags &
  (
    | { readonly opcode: 'send' }
    | { readonly opcode: 'send-with-immediate'; readonly immediate: number }
    | ({ readonly opcode: 'rdma-write' } & Remote)
    | ({ readonly opcode: 'rdma-write-with-immediate'; readonly immediate: number } & Remote)
    | ({ readonly opcode: 'rdma-read' } & Remote)
  )

/** What {@link QueuePair.postReceive} takes (ibv_recv_wr). */
export interface ReceiveWorkRequest {
  readonly workRequestId?: bigint
  readonly data?: readonly ScatterGatherElement[]
}

export interface QueuePairOptions {
  readonly sendQueue: CompletionQueue
  /** default: the same as `sendQueue` */
  readonly receiveQueue?: CompletionQueue
  /** work requests outstanding, default 128 each */
  readonly maxSend?: number
  readonly maxReceive?: number
  /** scatter/gather elements of one work request, default 1 */
  readonly maxSendElements?: number
  readonly maxReceiveElements?: number
  /** bytes wished for inline sends, default 64; read {@link QueuePair.maxInlineData} for what was granted */
  readonly maxInlineData?: number
  /** complete every send, whatever its `signaled` says */
  readonly signalAll?: boolean
}

/** A reliable connected queue pair (ibv_qp of type IBV_QPT_RC), made through a {@link ConnectionId}. */
export class QueuePair extends Resource {
  readonly number: number
  /** bytes that an inline send may carry, as granted by the device */
  readonly maxInlineData: number

  /** @internal made by {@link ConnectionId.createQueuePair} */
  constructor(id: ConnectionId, protectionDomain: ProtectionDomain, options: QueuePairOptions) {
    const { sendQueue, receiveQueue = sendQueue } = options
    super(
      calling(id.description, () =>
        native.createQp(id.handle, protectionDomain.handle, sendQueue.handle, receiveQueue.handle, {
          maxSend: options.maxSend ?? 128,
          maxReceive: options.maxReceive ?? 128,
          maxSendSge: options.maxSendElements ?? 1,
          maxReceiveSge: options.maxReceiveElements ?? 1,
          maxInline: options.maxInlineData ?? 64,
          signalAll: options.signalAll ?? false,
        }),
      ),
      sendQueue === receiveQueue
        ? [id, protectionDomain, sendQueue]
        : [id, protectionDomain, sendQueue, receiveQueue],
    )
    const info = native.qpInfo(this.handle)
    this.number = info.number
    this.maxInlineData = info.maxInline
  }

  get description(): string {
    return `queue pair ${this.number}`
  }

  get state(): QueuePairState {
    return STATES[native.qpInfo(this.handle).state] ?? 'unknown'
  }

  /**
   * Posts work requests in order, ringing the doorbell once (ibv_post_send(3)).
   * @throws VerbsError ENOMEM: the send queue is full; EINVAL: a request the device refuses.
   *   The requests before the refused one are posted.
   */
  postSend(...requests: readonly SendWorkRequest[]): void {
    const prepared = requests.map((request) => this.#prepare(request))
    calling(this.description, () => native.postSend(this.handle, prepared))
  }

  /** Posts receive buffers (ibv_post_recv(3)). @throws VerbsError ENOMEM: the receive queue is full */
  postReceive(...requests: readonly ReceiveWorkRequest[]): void {
    const prepared = requests.map(({ workRequestId = 0n, data = [] }) => ({
      workRequestId,
      sges: nativeSges(data),
    }))
    calling(this.description, () => native.postReceive(this.handle, prepared))
  }

  /** Moves the queue pair to the error state: everything outstanding completes as `flushed`. */
  moveToError(): void {
    calling(this.description, () => native.qpToError(this.handle))
  }

  #prepare(request: SendWorkRequest): NativeSendWorkRequest {
    const opcode = OPCODES[request.opcode]
    if (opcode === undefined) throw new UsageError(`unknown opcode "${request.opcode}"`)
    const immediate = 'immediate' in request ? request.immediate : 0
    if (!Number.isInteger(immediate) || immediate < 0 || immediate > 0xffffffff)
      throw new UsageError(`immediate data is 32 bits, not ${immediate}`)
    return {
      workRequestId: request.workRequestId ?? 0n,
      opcode,
      flags:
        (request.fence ? FENCE : 0) |
        (request.signaled === false ? 0 : SIGNALED) |
        (request.solicited ? SOLICITED : 0) |
        (request.inline ? INLINE : 0),
      sges: nativeSges(request.data ?? []),
      immediate,
      remoteAddress: 'remoteAddress' in request ? request.remoteAddress : 0n,
      remoteKey: 'remoteKey' in request ? request.remoteKey : 0,
    }
  }
}
