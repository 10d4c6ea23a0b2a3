/** `enum ibv_wc_status`, in its order. */
export const STATUSES = [
  'success',
  'local-length-error',
  'local-queue-pair-operation-error',
  'local-eec-operation-error',
  'local-protection-error',
  'flushed',
  'memory-window-bind-error',
  'bad-response-error',
  'local-access-error',
  'remote-invalid-request-error',
  'remote-access-error',
  'remote-operation-error',
  'retry-exceeded',
  'receiver-not-ready-retry-exceeded',
  'local-rdd-violation-error',
  'remote-invalid-rd-request',
  'remote-aborted',
  'invalid-eec-number',
  'invalid-eec-state',
  'fatal-error',
  'response-timeout',
  'general-error',
  'tag-matching-error',
  'tag-matching-rendezvous-incomplete',
] as const

/** How a work request ended (`enum ibv_wc_status`). */
export type CompletionStatus = (typeof STATUSES)[number]

/** `enum ibv_wc_opcode` */
export const COMPLETED_OPCODES = {
  0: 'send',
  1: 'rdma-write',
  2: 'rdma-read',
  3: 'compare-and-swap',
  4: 'fetch-and-add',
  5: 'bind-memory-window',
  6: 'local-invalidate',
  128: 'receive',
  129: 'receive-rdma-write-with-immediate',
} as const

/** What completed (`enum ibv_wc_opcode`). */
export type CompletedOpcode = (typeof COMPLETED_OPCODES)[keyof typeof COMPLETED_OPCODES]

/** One entry of a completion queue (ibv_wc). `opcode` and `byteLength` mean something on success only. */
export interface WorkCompletion {
  /** what the request was posted with */
  readonly workRequestId: bigint
  /** how it ended */
  readonly status: CompletionStatus
  /** what completed */
  readonly opcode: CompletedOpcode | undefined
  /** bytes received or read */
  readonly byteLength: number
  /** 32 bits in host byte order; undefined when the message carried none */
  readonly immediate: number | undefined
  /** the memory window of this side that the message took away; undefined when it took none */
  readonly invalidatedKey: number | undefined
  /** of a datagram: the first 40 bytes of the buffer are a global routing header */
  readonly globalRoutingHeader: boolean
  /** of a datagram: who sent it */
  readonly sourceQueuePairNumber: number
  /** the queue pair of this side */
  readonly queuePairNumber: number
  /** what the device says beyond `status`; its meaning is the vendor's */
  readonly vendorError: number
  /**
   * When the request completed, if the queue has timestamps: nanoseconds since 1970 (`wallclock`), or ticks
   * of the device's clock (`device`; nanoseconds of CLOCK_MONOTONIC on the software providers)
   */
  readonly timestamp: bigint | undefined
}
