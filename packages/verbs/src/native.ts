import { createRequire } from 'node:module'

/** A type-tagged `napi_external` that carries a verbs object between native addons. */
export type Handle = {
  /** @internal tells it from other objects */
  readonly __handle: unique symbol
}

/** Any libibverbs device; RDMA over TCP in user space; shared memory of one host. */
export type ProviderName = 'ibverbs' | 'iwarp' | 'shm'

export interface NativeDeviceInfo {
  name: string
  provider: ProviderName
  transport: string
  guid: string
}

export interface NativeWorkCompletion {
  workRequestId: bigint
  status: number
  opcode: number
  byteLength: number
  immediate: number | undefined
  invalidatedKey: number | undefined
  globalRoutingHeader: boolean
  sourceQueuePairNumber: number
  queuePairNumber: number
  vendorError: number
  timestamp: bigint | undefined
}

export interface NativeSge {
  address: bigint
  length: number
  localKey: number
}

export interface NativeSendWorkRequest {
  workRequestId: bigint
  opcode: number
  flags: number
  sges: NativeSge[]
  immediate: number
  invalidateKey: number
  remoteAddress: bigint
  remoteKey: number
  compareAdd: bigint
  swap: bigint
  bind?: {
    window: Handle
    key: number
    region: Handle
    address: bigint
    length: number
    access: number
  }
  datagram?: { addressHandle: Handle; queuePairNumber: number; queueKey: number }
}

/** Where mapped memory comes from; `hugePages` is the index of `HugePages` in `mapped_memory.h`. */
export interface NativeMemoryOptions {
  hugePages: number
  numaNode: number
  locked: boolean
  shared: boolean
  populated: boolean
}

export interface NativeAddressVector {
  portNumber: number
  serviceLevel: number
  lid: number
  gid?: Uint8Array
  sourceGidIndex: number
  hopLimit: number
  trafficClass: number
  flowLabel: number
}

export interface NativeGid {
  index: number
  gid: Uint8Array
  type: string
  interfaceIndex: number
}

/** Records in an ArrayBuffer of native memory, with a function that takes whole numbers. */
export interface NativeSlots {
  handle: Handle
  buffer: ArrayBuffer
  /** how many were posted; fewer than `count` when the queue is full */
  post(first: number, count: number): number
}

export interface NativeCompletionArray {
  handle: Handle
  buffer: ArrayBuffer
  /** how many completions were taken; -1 when the queue is broken */
  poll(max: number): number
}

/** What a connection id reports. `request` is a new id on a listener. */
export interface NativeCmEvent {
  type:
    | 'route_resolved'
    | 'resolve_failed'
    | 'connect_request'
    | 'accept_stalled'
    | 'established'
    | 'rejected'
    | 'connect_failed'
    | 'disconnected'
  status: number
  privateData: Uint8Array
  request: Handle | undefined
}

/** `host` is an IP address, or the path of a Unix socket with port 0. */
export interface NativeAddress {
  host: string
  port: number
}

/** The addon's functions. Each throws a {@link NativeVerbsError}-shaped Error on failure. */
export interface NativeVerbs {
  providerAvailable(provider: ProviderName): string | undefined
  listDevices(provider: ProviderName): NativeDeviceInfo[]
  openDevice(provider: ProviderName, name: string): Handle
  contextInfo(context: Handle): {
    provider: ProviderName
    name: string
    capabilities: number
    identity: bigint
  }
  queryDevice(context: Handle): Record<string, number | bigint | string>
  queryPort(context: Handle, port: number): Record<string, number>
  allocPd(context: Handle): Handle
  queryGids(context: Handle, port: number): NativeGid[]
  watchAsyncEvents(context: Handle, sink: (type: number, element: bigint) => void): void
  unwatchAsyncEvents(context: Handle): void
  allocMr(pd: Handle, length: number, access: number, options: NativeMemoryOptions): Promise<Handle>
  regMr(pd: Handle, buffer: ArrayBufferLike, offset: number, length: number, access: number): Handle
  regMrAsync(
    pd: Handle,
    buffer: ArrayBufferLike,
    offset: number,
    length: number,
    access: number,
  ): Promise<Handle>
  regDmabufMr(pd: Handle, fd: number, offset: number, length: number, access: number): Handle
  reregMr(mr: Handle, pd: Handle | undefined, access: number): void
  allocMw(pd: Handle): Handle
  mwKey(mw: Handle): number
  createSrq(pd: Handle, maxReceive: number, maxReceiveSge: number): Handle
  srqInfo(srq: Handle): { identity: bigint; maxReceive: number; maxReceiveSge: number; limit: number }
  setSrqLimit(srq: Handle, limit: number): void
  createAh(pd: Handle, vector: NativeAddressVector): Handle
  attachMulticast(qp: Handle, gid: Uint8Array, lid: number): void
  detachMulticast(qp: Handle, gid: Uint8Array, lid: number): void
  mrInfo(mr: Handle): {
    address: bigint
    length: number
    localKey: number
    remoteKey: number
    /** memory of this process, which a DMA buffer is not */
    mapped: boolean
  }
  /** `given`: the program gets it, and may hand it to I/O */
  mrBuffer(mr: Handle, given: boolean): ArrayBuffer
  keptMemory(): { regions: number; bytes: number }
  createChannel(context: Handle): Handle
  /**
   * `wake` gets the identity ({@link cqIdentity}) of the queue that has an event, or undefined and an error, after
   * which there are no more events: the device is gone.
   */
  watchChannel(channel: Handle, wake: (cq: bigint | undefined, failure?: Error) => void): void
  /** whether its watch keeps the event loop alive; at first it does not */
  setChannelRef(channel: Handle, on: boolean): void
  createCq(
    context: Handle,
    entries: number,
    channel: Handle | undefined,
    manual: boolean,
    timestamps: number,
  ): Handle
  resizeCq(cq: Handle, entries: number): void
  cqEntries(cq: Handle): number
  createCompletionArray(cq: Handle, count: number): NativeCompletionArray
  cqIdentity(cq: Handle): bigint
  pollCq(cq: Handle, max: number): NativeWorkCompletion[]
  requestNotification(cq: Handle, solicitedOnly: boolean): void
  createQp(
    id: Handle | undefined,
    pd: Handle,
    sendCq: Handle,
    recvCq: Handle,
    srq: Handle | undefined,
    caps: {
      type: number
      maxSend: number
      maxReceive: number
      maxSendSge: number
      maxReceiveSge: number
      maxInline: number
      signalAll: boolean
    },
  ): Handle
  qpInfo(qp: Handle): {
    number: number
    identity: bigint
    state: number
    maxInline: number
    maxSend: number
    maxReceive: number
  }
  qpToError(qp: Handle): void
  postSend(qp: Handle, requests: NativeSendWorkRequest[]): void
  modifyQp(qp: Handle, attributes: Record<string, number | NativeAddressVector>): void
  queryQp(qp: Handle): Record<string, number>
  /** on a queue pair, or with `shared` on a shared receive queue */
  postReceive(queue: Handle, requests: { workRequestId: bigint; sges: NativeSge[] }[], shared: boolean): void
  createSendSlots(qp: Handle, regions: Handle[], count: number): NativeSlots
  createReceiveSlots(queue: Handle, regions: Handle[], count: number, shared: boolean): NativeSlots
  createId(provider: ProviderName): Handle
  setIdSink(id: Handle, sink: (event: NativeCmEvent) => void): void
  /** whether its sink keeps the event loop alive; at first it does not */
  setIdRef(id: Handle, on: boolean): void
  idListen(id: Handle, host: string, port: number, backlog: number): void
  /** another address of the peer, for connect to try when the one before does not answer */
  idAddAlternative(id: Handle, host: string, port: number): void
  idResolve(id: Handle, host: string, port: number, timeoutMs: number): void
  idContext(id: Handle): Handle
  idConnect(id: Handle, qp: Handle, privateData: Uint8Array, responder: number, initiator: number): void
  idAccept(id: Handle, qp: Handle, privateData: Uint8Array, responder: number, initiator: number): void
  idReject(id: Handle, privateData: Uint8Array): void
  idDisconnect(id: Handle): void
  idLocalAddress(id: Handle): NativeAddress
  idPeerAddress(id: Handle): NativeAddress
  /** Drops JavaScript's reference; the object goes when the last native user releases it. Idempotent. */
  close(handle: Handle): void
  /** {@link close}, which waits for the device on another thread */
  closeAsync(handle: Handle): Promise<void>
  /** also of a handle that is closed */
  destroyed(handle: Handle): boolean
}

// By name, so that it is found also from a bundle that holds this file. A bundle of CommonJS has no import.meta.url.
const require = createRequire(import.meta.url ?? __filename)

export const native = require('@rdmakit/verbs/addon') as NativeVerbs
