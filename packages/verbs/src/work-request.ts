import type { AddressHandle } from './address-vector.js'
import { UsageError } from './errors.js'
import {
  type Access,
  accessBits,
  type MemoryRegion,
  nativeSges,
  type ScatterGatherElement,
} from './memory-region.js'
import type { MemoryWindow } from './memory-window.js'
import type { NativeSendWorkRequest } from './native.js'

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

export interface SendFlags {
  /** ask for a completion on success, default true */
  readonly signaled?: boolean
  /** raise an event on a peer that armed for solicited completions only */
  readonly solicited?: boolean
  /** copy the data while posting; at most {@link QueuePair.maxInlineData} bytes */
  readonly inline?: boolean
  /** wait for earlier RDMA READs and atomics first */
  readonly fence?: boolean
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

interface Common extends SendFlags {
  /** handed back in the completion, default 0 */
  readonly workRequestId?: bigint
  /** where the bytes come from; for `rdma-read` and the atomics where they go */
  readonly data?: readonly ScatterGatherElement[]
}

interface Remote {
  /** virtual address in the peer's memory */
  readonly remoteAddress: bigint
  readonly remoteKey: number
}

/** Where a datagram goes: on a queue pair of type `ud`, and there only. */
export interface DatagramDestination {
  readonly addressHandle: AddressHandle
  readonly queuePairNumber: number
  /** must be the receiving queue pair's */
  readonly queueKey: number
}

interface Datagram {
  readonly destination?: DatagramDestination
}

/** What {@link QueuePair.postSend} takes (ibv_send_wr). */
export type SendWorkRequest = Common &
  (
    | ({ readonly opcode: 'send' } & Datagram)
    | ({ readonly opcode: 'send-with-immediate'; readonly immediate: number } & Datagram)
    | {
        readonly opcode: 'send-with-invalidate'
        /** the peer's memory window, which the message takes away before it is received */
        readonly invalidateKey: number
      }
    | ({ readonly opcode: 'rdma-write' } & Remote)
    | ({ readonly opcode: 'rdma-write-with-immediate'; readonly immediate: number } & Remote)
    | ({ readonly opcode: 'rdma-read' } & Remote)
    | ({
        /** 8 bytes, aligned to 8: replaced by `swap` if they are `compare`; `data` gets what they were */
        readonly opcode: 'compare-and-swap'
        readonly compare: bigint
        readonly swap: bigint
      } & Remote)
    | ({
        /** 8 bytes, aligned to 8: `add` is added modulo 2^64; `data` gets what they were */
        readonly opcode: 'fetch-and-add'
        readonly add: bigint
      } & Remote)
    | {
        /** takes away a memory window of this side */
        readonly opcode: 'local-invalidate'
        readonly invalidateKey: number
      }
    | {
        /** gives remote access to a part of a region, under the window's next {@link MemoryWindow.remoteKey} */
        readonly opcode: 'bind-memory-window'
        readonly window: MemoryWindow
        readonly region: MemoryRegion
        /** bytes from the region's start, default 0 */
        readonly offset?: number
        /** bytes, default to the region's end */
        readonly length?: number
        readonly access: readonly Access[]
      }
  )

/** What {@link QueuePair.postReceive} takes (ibv_recv_wr). */
export interface ReceiveWorkRequest {
  /** handed back in the completion, default 0 */
  readonly workRequestId?: bigint
  /** where the message goes */
  readonly data?: readonly ScatterGatherElement[]
}

function uint32(value: number, name: string): number {
  if (!Number.isInteger(value) || value < 0 || value > 0xffffffff)
    throw new UsageError(`${name} is 32 bits, not ${value}`)
  return value
}

/** @internal */
export function nativeSendWorkRequest(request: SendWorkRequest): NativeSendWorkRequest {
  const opcode = OPCODES[request.opcode]
  if (opcode === undefined) throw new UsageError(`unknown opcode "${request.opcode}"`)
  const prepared: NativeSendWorkRequest = {
    workRequestId: request.workRequestId ?? 0n,
    opcode,
    flags: flagBits(request),
    sges: nativeSges(request.data ?? []),
    immediate: 'immediate' in request ? uint32(request.immediate, 'immediate data') : 0,
    invalidateKey: 'invalidateKey' in request ? uint32(request.invalidateKey, 'a key') : 0,
    remoteAddress: 'remoteAddress' in request ? request.remoteAddress : 0n,
    remoteKey: 'remoteKey' in request ? request.remoteKey : 0,
    compareAdd: 'compare' in request ? request.compare : 'add' in request ? request.add : 0n,
    swap: 'swap' in request ? request.swap : 0n,
  }
  if (request.opcode === 'bind-memory-window') {
    const { window, region, access } = request
    const [range] = nativeSges([
      {
        region,
        ...(request.offset === undefined ? {} : { offset: request.offset }),
        ...(request.length === undefined ? {} : { length: request.length }),
      },
    ]) as [ReturnType<typeof nativeSges>[number]]
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
    prepared.datagram = { addressHandle: addressHandle.handle, queuePairNumber, queueKey }
  }
  return prepared
}
