import { integerInRange } from '../base/arguments.js'
import { UsageError } from '../base/errors.js'
import { type Access, accessBits } from '../memory/memory-region.js'
import type { NativeAddressVector } from '../native.js'
import { type AddressVector, nativeAddressVector } from './address-vector.js'

/** `enum ibv_qp_type` */
export const TYPES = { rc: 2, uc: 3, ud: 4 } as const

/** Reliable connected, unreliable connected, unreliable datagram. */
export type QueuePairType = keyof typeof TYPES

/** `enum ibv_qp_state`, in its order. */
export const STATES = ['reset', 'init', 'rtr', 'rts', 'sqd', 'sqe', 'error', 'unknown'] as const

/** The life of a queue pair (ibv_modify_qp(3)): ready to receive is `rtr`, ready to send `rts`. */
export type QueuePairState = (typeof STATES)[number]

const MTUS = [256, 512, 1024, 2048, 4096] as const

/** What ibv_modify_qp(3) sets; which of them a transition needs is checked before the device is asked. */
export interface QueuePairAttributes {
  /** the state to enter */
  readonly state?: Exclude<QueuePairState, 'unknown'> | undefined
  /** what peers may do with memory through this queue pair */
  readonly access?: readonly Access[] | undefined
  /** index into the port's table of partition keys, 0 for the default partition */
  readonly partitionKeyIndex?: number | undefined
  /** the local port, from 1 */
  readonly portNumber?: number | undefined
  /** of datagrams: what senders must name */
  readonly queueKey?: number | undefined
  /** bytes */
  readonly pathMtu?: (typeof MTUS)[number] | undefined
  /** the way to the peer's port */
  readonly addressVector?: AddressVector | undefined
  /** 24 bits: the peer's {@link QueuePair.number} */
  readonly destinationQueuePairNumber?: number | undefined
  /** 24 bits: the peer's `sendPacketSequence` */
  readonly receivePacketSequence?: number | undefined
  /** 24 bits: where this side starts to count */
  readonly sendPacketSequence?: number | undefined
  /** RDMA READs and atomics of the peer that this side serves at once */
  readonly responderResources?: number | undefined
  /** RDMA READs and atomics that this side keeps outstanding */
  readonly initiatorDepth?: number | undefined
  /** 0…31, the code of IBTA's table of RNR timers: what a sender without a receive waits at least */
  readonly minReceiverNotReadyTimer?: number | undefined
  /** 0…31: 4.096 µs × 2^timeout until a packet is sent again; 0 waits without end */
  readonly timeout?: number | undefined
  /** 0…7 */
  readonly retryCount?: number | undefined
  /** 0…7; 7 tries without end */
  readonly receiverNotReadyRetryCount?: number | undefined
}

type Name = keyof QueuePairAttributes

/** The largest value of each attribute that is a number (struct ibv_qp_attr, IBTA). */
const MOST = {
  partitionKeyIndex: 0xffff,
  portNumber: 0xff,
  queueKey: 0xffffffff,
  destinationQueuePairNumber: 0xffffff,
  receivePacketSequence: 0xffffff,
  sendPacketSequence: 0xffffff,
  responderResources: 0xff,
  initiatorDepth: 0xff,
  minReceiverNotReadyTimer: 31,
  timeout: 31,
  retryCount: 7,
  receiverNotReadyRetryCount: 7,
} as const

/** The attributes that ibv_modify_qp(3) requires, by type and by the state that is entered. */
const REQUIRED: Readonly<Record<QueuePairType, Partial<Record<QueuePairState, readonly Name[]>>>> = {
  rc: {
    init: ['partitionKeyIndex', 'portNumber', 'access'],
    rtr: [
      'addressVector',
      'pathMtu',
      'destinationQueuePairNumber',
      'receivePacketSequence',
      'responderResources',
      'minReceiverNotReadyTimer',
    ],
    rts: ['sendPacketSequence', 'initiatorDepth', 'timeout', 'retryCount', 'receiverNotReadyRetryCount'],
  },
  uc: {
    init: ['partitionKeyIndex', 'portNumber', 'access'],
    rtr: ['addressVector', 'pathMtu', 'destinationQueuePairNumber', 'receivePacketSequence'],
    rts: ['sendPacketSequence'],
  },
  ud: {
    init: ['partitionKeyIndex', 'portNumber', 'queueKey'],
    rtr: [],
    rts: ['sendPacketSequence'],
  },
}

/** From which state each may be entered; the table of ibv_modify_qp(3). */
const ENTERED_FROM: Partial<Record<QueuePairState, readonly QueuePairState[]>> = {
  init: ['reset', 'init'],
  rtr: ['init'],
  rts: ['rtr', 'rts', 'sqd', 'sqe'],
  sqd: ['rts', 'sqd'],
}

/** @internal the native form; throws UsageError naming what is missing for a transition */
export function nativeAttributes(
  type: QueuePairType,
  from: QueuePairState,
  attributes: QueuePairAttributes,
): Record<string, number | NativeAddressVector> {
  const { state, access, pathMtu, addressVector, ...numbers } = attributes
  if (state !== undefined) {
    if (!STATES.includes(state)) throw new UsageError(`"${state}" is not a state of a queue pair`)
    const sources = ENTERED_FROM[state]
    if (sources !== undefined && !sources.includes(from))
      throw new UsageError(
        `a queue pair in state ${from} cannot go to ${state}, only from ${sources.join(', ')}`,
      )
    // From state to the same state, and on from SQD and SQE, everything is optional.
    const first =
      (state === 'init' && from === 'reset') || state === 'rtr' || (state === 'rts' && from === 'rtr')
    const missing = first
      ? (REQUIRED[type][state] ?? []).filter((name) => attributes[name] === undefined)
      : []
    if (missing.length > 0)
      throw new UsageError(
        `a ${type} queue pair that goes from ${from} to ${state} needs ${missing.join(', ')}`,
      )
  }
  const prepared: Record<string, number | NativeAddressVector> = {}
  for (const [name, value] of Object.entries(numbers)) {
    if (value === undefined) continue
    prepared[name] = integerInRange(name, value, 0, MOST[name as keyof typeof MOST])
  }
  if (state !== undefined) prepared.state = STATES.indexOf(state)
  if (access !== undefined) prepared.access = accessBits(access)
  if (pathMtu !== undefined) {
    const code = MTUS.indexOf(pathMtu) + 1
    if (code === 0) throw new UsageError(`a path MTU is one of ${MTUS.join(', ')} bytes, not ${pathMtu}`)
    prepared.pathMtu = code
  }
  if (addressVector !== undefined) prepared.addressVector = nativeAddressVector(addressVector)
  return prepared
}

/** What ibv_query_qp(3) tells of a queue pair, under the names of {@link QueuePairAttributes}. */
export type QueuePairQuery = Readonly<
  Record<Exclude<Name, 'state' | 'access' | 'pathMtu' | 'addressVector'>, number>
> & {
  /** where the queue pair is */
  readonly state: QueuePairState
  /** bytes; undefined before it was set */
  readonly pathMtu: number | undefined
}

/** @internal */
export function queryOf(values: Record<string, number>): QueuePairQuery {
  const { state = 0, pathMtu = 0, access: _access, ...numbers } = values
  return {
    ...(numbers as Record<Exclude<Name, 'state' | 'access' | 'pathMtu' | 'addressVector'>, number>),
    state: STATES[state] ?? 'unknown',
    pathMtu: MTUS[pathMtu - 1],
  }
}
