import { integerInRange, word } from '../base/arguments.js'
import { UsageError } from '../base/errors.js'
import {
  type Access,
  accessBits,
  type MemoryRegion,
  nativeSges,
  type ScatterGatherElement,
} from '../memory/memory-region.js'
import type { MemoryWindow } from '../memory/memory-window.js'
import type { NativeSendWorkRequest } from '../native.js'
import type { AddressHandle } from './address-vector.js'

/** `enum ibv_wr_opcode` */
export const OPCODES = {
  'rdma-write': 0,
  'rdma-write-with-immediate': 1,
  send: 2,
  'send-with-immediate': 3,
  'rdma-read': 4,
  'compare-and-swap': 5,
  'fetch-and-add': 6,
  'local-invalidate': 7,
  'bind-memory-window': 8,
  'send-with-invalidate': 9,
} as const

/** `enum ibv_send_flags` */
const FENCE = 1
const SIGNALED = 2
const SOLICITED = 4
const INLINE = 8

/** What a send asks for beside its work (`enum ibv_send_flags`). */
export interface SendFlags {
  /** ask for a completion on success, default true */
  readonly signaled?: boolean | undefined
  /** raise an event on a peer that armed for solicited completions only */
  readonly solicited?: boolean | undefined
  /** copy the data while posting; at most {@link QueuePair.maxInlineData} bytes */
  readonly inline?: boolean | undefined
  /** wait for earlier RDMA READs and atomics first */
  readonly fence?: boolean | undefined
}

/** @internal `enum ibv_send_flags` of a request */
export function flagBits({ fence, signaled, solicited, inline }: SendFlags): number {
  return (
    (fence ? FENCE : 0) |
    (signaled === false ? 0 : SIGNALED) |
    (solicited ? SOLICITED : 0) |
    (inline ? INLINE : 0)
  )
}

/** What every work request that is sent has. */
export interface SendRequestCommon extends SendFlags {
  /** handed back in the completion, default 0 */
  readonly workRequestId?: bigint | undefined
  /** where the bytes come from; for `rdma-read` and the atomics where they go */
  readonly data?: readonly ScatterGatherElement[] | undefined
}

/** Memory of the peer. */
export interface RemoteMemory {
  /** virtual address in the peer's memory */
  readonly remoteAddress: bigint
  /** the peer's {@link MemoryRegion.remoteKey} or {@link MemoryWindow.remoteKey} */
  readonly remoteKey: number
}

/** Where a datagram goes: on a queue pair of type `ud`, and there only. */
export interface DatagramDestination {
  /** the way to the peer's port */
  readonly addressHandle: AddressHandle
  /** the peer's {@link QueuePair.number} */
  readonly queuePairNumber: number
  /** must be the receiving queue pair's */
  readonly queueKey: number
}

/** A message that takes a receive of the peer. */
export interface SendRequest extends SendRequestCommon {
  /** which operation */
  readonly opcode: 'send'
  /** of a datagram */
  readonly destination?: DatagramDestination | undefined
}

/** A message with 32 bits beside it. */
export interface SendWithImmediateRequest extends SendRequestCommon {
  /** which operation */
  readonly opcode: 'send-with-immediate'
  /** 32 bits, host byte order */
  readonly immediate: number
  /** of a datagram */
  readonly destination?: DatagramDestination | undefined
}

/** A message that revokes a memory window of the peer before it is received. */
export interface SendWithInvalidateRequest extends SendRequestCommon {
  /** which operation */
  readonly opcode: 'send-with-invalidate'
  /** the window's key */
  readonly invalidateKey: number
}

/** Bytes written into the peer's memory, without a completion there. */
export interface WriteRequest extends SendRequestCommon, RemoteMemory {
  /** which operation */
  readonly opcode: 'rdma-write'
}

/** Bytes written into the peer's memory, with a completion of one of the peer's receives. */
export interface WriteWithImmediateRequest extends SendRequestCommon, RemoteMemory {
  /** which operation */
  readonly opcode: 'rdma-write-with-immediate'
  /** 32 bits, host byte order */
  readonly immediate: number
}

/** Bytes read from the peer's memory. */
export interface ReadRequest extends SendRequestCommon, RemoteMemory {
  /** which operation */
  readonly opcode: 'rdma-read'
}

/** Replaces 8 bytes of the peer, aligned to 8, if they equal `compare`; `data` gets the old value. */
export interface CompareAndSwapRequest extends SendRequestCommon, RemoteMemory {
  /** which operation */
  readonly opcode: 'compare-and-swap'
  /** the expected value */
  readonly compare: bigint
  /** the new value */
  readonly swap: bigint
}

/** Adds to 8 bytes of the peer, aligned to 8, modulo 2^64; `data` gets the old value. */
export interface FetchAndAddRequest extends SendRequestCommon, RemoteMemory {
  /** which operation */
  readonly opcode: 'fetch-and-add'
  /** what is added */
  readonly add: bigint
}

/**
 * Revokes a memory window of this side: after it has completed successfully, no byte arrives through the window. Over shm a
 * peer that is stopped (SIGSTOP) in the middle of a copy makes it fail after 5 seconds, with the status
 * `local-queue-pair-operation-error`: the peer may continue that one copy, so close the region then and use other
 * memory.
 */
export interface LocalInvalidateRequest extends SendRequestCommon {
  /** which operation */
  readonly opcode: 'local-invalidate'
  /** the window's key */
  readonly invalidateKey: number
}

/** Gives remote access to a part of a region, under the window's next {@link MemoryWindow.remoteKey}. */
export interface BindMemoryWindowRequest extends SendRequestCommon {
  /** which operation */
  readonly opcode: 'bind-memory-window'
  /** must not be bound already: invalidate it first */
  readonly window: MemoryWindow
  /** must allow `bind-memory-window` */
  readonly region: MemoryRegion
  /** bytes from the region's start, default 0 */
  readonly offset?: number | undefined
  /** bytes, default to the region's end */
  readonly length?: number | undefined
  /** what the holder of the key may do; writing needs a region with `local-write` */
  readonly access: readonly Access[]
}

/** What {@link QueuePair.postSend} takes (ibv_send_wr). */
export type SendWorkRequest =
  | SendRequest
  | SendWithImmediateRequest
  | SendWithInvalidateRequest
  | WriteRequest
  | WriteWithImmediateRequest
  | ReadRequest
  | CompareAndSwapRequest
  | FetchAndAddRequest
  | LocalInvalidateRequest
  | BindMemoryWindowRequest

/** What {@link QueuePair.postReceive} takes (ibv_recv_wr). */
export interface ReceiveWorkRequest {
  /** handed back in the completion, default 0 */
  readonly workRequestId?: bigint | undefined
  /** where the message goes */
  readonly data?: readonly ScatterGatherElement[] | undefined
}

/** @internal */
export function nativeReceiveWorkRequest({ workRequestId = 0n, data = [] }: ReceiveWorkRequest) {
  return { workRequestId: word('a work request id', workRequestId), sges: nativeSges(data) }
}

/** @internal */
export function nativeSendWorkRequest(request: SendWorkRequest): NativeSendWorkRequest {
  const opcode = OPCODES[request.opcode]
  if (opcode === undefined) throw new UsageError(`unknown opcode "${request.opcode}"`)
  if (request.inline && request.data?.some(({ region }) => !region.mapped))
    throw new UsageError('a DMA buffer cannot be sent from inline')
  const prepared: NativeSendWorkRequest = {
    workRequestId: word('a work request id', request.workRequestId ?? 0n),
    opcode,
    flags: flagBits(request),
    sges: nativeSges(request.data ?? []),
    immediate: 'immediate' in request ? integerInRange('immediate data', request.immediate) : 0,
    invalidateKey: 'invalidateKey' in request ? integerInRange('a key', request.invalidateKey) : 0,
    remoteAddress: 'remoteAddress' in request ? word('an address', request.remoteAddress) : 0n,
    remoteKey: 'remoteKey' in request ? integerInRange('a key', request.remoteKey) : 0,
    compareAdd: word(
      'an operand',
      'compare' in request ? request.compare : 'add' in request ? request.add : 0n,
    ),
    swap: word('an operand', 'swap' in request ? request.swap : 0n),
  }
  if (request.opcode === 'bind-memory-window') {
    const { window, region, access } = request
    const { offset, length } = request
    const [range] = nativeSges([{ region, offset, length }]) as [ReturnType<typeof nativeSges>[number]]
    prepared.bind = {
      window: window.handle,
      key: window.nextKey,
      region: region.handle,
      address: range.address,
      length: range.length,
      access: accessBits(access, { window: true }),
    }
  }
  if ('destination' in request && request.destination !== undefined) {
    const { addressHandle, queuePairNumber, queueKey } = request.destination
    prepared.datagram = {
      addressHandle: addressHandle.handle,
      queuePairNumber: integerInRange('a queue pair number', queuePairNumber, 0, 0xffffff),
      queueKey: integerInRange('a queue key', queueKey),
    }
  }
  return prepared
}
