import { createRequire } from 'node:module'

/** A type-tagged `napi_external` that carries a verbs object between native addons. */
export type Handle = { readonly __handle: unique symbol }

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
  queuePairNumber: number
  vendorError: number
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
  remoteAddress: bigint
  remoteKey: number
}

/** What a connection id reports. `request` is a new id on a listener. */
export interface NativeCmEvent {
  type:
    | 'route_resolved'
    | 'resolve_failed'
    | 'connect_request'
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
  allocMr(pd: Handle, length: number, access: number): Promise<Handle>
  mrInfo(mr: Handle): { address: bigint; length: number; localKey: number; remoteKey: number }
  mrBuffer(mr: Handle): ArrayBuffer
  createChannel(context: Handle): Handle
  /** `wake` gets the identity ({@link cqIdentity}) of the queue that has an event. */
  watchChannel(channel: Handle, wake: (cq: bigint) => void): void
  createCq(context: Handle, entries: number, channel: Handle | undefined, manual: boolean): Handle
  cqIdentity(cq: Handle): bigint
  pollCq(cq: Handle, max: number): NativeWorkCompletion[]
  requestNotification(cq: Handle, solicitedOnly: boolean): void
  createQp(
    id: Handle,
    pd: Handle,
    sendCq: Handle,
    recvCq: Handle,
    caps: {
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
    state: number
    maxInline: number
    maxSend: number
    maxReceive: number
  }
  qpToError(qp: Handle): void
  postSend(qp: Handle, requests: NativeSendWorkRequest[]): void
  postReceive(qp: Handle, requests: { workRequestId: bigint; sges: NativeSge[] }[]): void
  createId(provider: ProviderName): Handle
  setIdSink(id: Handle, sink: (event: NativeCmEvent) => void): void
  idListen(id: Handle, host: string, port: number, backlog: number): void
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
}

function load(): NativeVerbs {
  const require = createRequire(import.meta.url)
  const path = '../build/Release/verbs.node'
  try {
    return require(path) as NativeVerbs
  } catch (cause) {
    throw new Error(
      `@rdmakit/verbs: its native addon could not be loaded (${(cause as Error).message.split('\n')[0]}); run "npm run build"`,
      { cause },
    )
  }
}

export const native: NativeVerbs = load()
