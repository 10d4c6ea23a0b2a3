import { createRequire } from 'node:module'
import type { NativeEngineOptions, VolumeAddon } from '@rdmakit/remote-volume'
import type { NativeEngine, NativeStatistics } from '@rdmakit/remote-volume/internal'

export interface NativeExport {
  name: string
  description: string
  offset: bigint
  /** 0n: up to the end of the volume */
  size: bigint
  readOnly: boolean
}

export interface NativeTls {
  mode: 'off' | 'on' | 'required'
  /** empty: none */
  certificates: string
  /** empty: none */
  sharedKeys: string
  verifyPeer: boolean
}

/** What NBD clients are served with. */
export interface NativeFrontOptions {
  exports: NativeExport[]
  minimumBlockSize: number
  tls: NativeTls
  handshakeTimeout: number
  maxHandshakes: number
  stallTimeout: number
  laneWait: number
}

export interface NativeFrontStatistics {
  handshakes: number
  handshakesRefused: number
}

export type NativeFrontEvent =
  | { type: 'connectionOpened'; lane: number }
  | { type: 'connectionClosed'; lane: number; reason: string }
  | { type: 'laneIdle'; lane: number }
  | { type: 'handshakeRefused'; peer: string; reason: string }
  | { type: 'listenerFailed'; address: string; reason: string }
  /** descriptor: −1 when there was no connection */
  | { type: 'laneYielded'; lane: number; descriptor: number }

export interface NativeSafety {
  name: string
  granted: boolean
  reason: string
}

export interface NativeKernelConnect {
  /** -1: the first free one */
  index: number
  size: bigint
  blockSize: number
  timeout: number
  deadConnectionTimeout: number
  serverFlags: number
  clientFlags: number
  identifier: string
  sockets: number[]
}

export interface NativeUblkDevice {
  index: number
  /** at most one for each processor */
  queues: number
}

export interface NativeUblkStatus {
  index: number
  identifier: bigint
  queues: number
  /** process; -1 unless it is started */
  server: number
  /** its requests wait for a successor of a process that dies */
  kept: boolean
  /** `dead`: not started, or stopped; `quiesced`: its server is gone, and its requests wait for another */
  state: 'dead' | 'live' | 'quiesced' | 'other'
}

/** The addon's functions. Each throws an Error with `code` (errno name) and `syscall` on failure. */
export interface NativeBinding extends VolumeAddon {
  /** @param sink takes each event of the volume and each {@link NativeFrontEvent} */
  createEngine(
    options: NativeEngineOptions & NativeFrontOptions,
    sink: (event: { readonly type: string }) => void,
  ): NativeEngine
  statistics(engine: NativeEngine): NativeStatistics & NativeFrontStatistics
  exportFlags(engine: NativeEngine): number
  bindUnix(engine: NativeEngine, path: string): void
  acceptClients(engine: NativeEngine): void
  bindTcp(engine: NativeEngine, host: string, port: number): { host: string; port: number }
  attachSocketpair(engine: NativeEngine, lane: number): number
  attachSocket(engine: NativeEngine, lane: number, descriptor: number): void
  attachDevice(engine: NativeEngine, lanes: number[], descriptor: number): void
  yieldLane(engine: NativeEngine, lane: number): void
  resumeLane(engine: NativeEngine, lane: number): void
  protectProcess(): NativeSafety[]
  becomeIoFlusher(): boolean
  lockFile(path: string): number
  descriptorChannel(): [number, number]
  sendDescriptors(channel: number, descriptors: number[]): void
  receiveDescriptors(channel: number): number[]
  closeDescriptor(descriptor: number): void
  replaceProcess(program: string, words: string[], kept: number[]): void
  kernelConnect(options: NativeKernelConnect): number
  kernelReconfigure(options: NativeKernelConnect): void
  kernelDisconnect(index: number): void
  kernelStatus(): { index: number; connected: boolean }[]
  /** `index` -1: the first free one */
  ublkAdd(options: {
    index: number
    size: bigint
    queues: number
    identifier: bigint
    kept: boolean
  }): NativeUblkDevice
  ublkOpen(index: number): number
  ublkRecover(index: number): Promise<void>
  /** Makes the kernel look whether the disk's process is there. `disk`: open with O_DIRECT; `offset`: of a page */
  ublkNudge(disk: number, offset: bigint): void
  /** true: somebody uses the disk, also one that was stopped */
  ublkUse(index: number): boolean
  ublkStatus(index: number): NativeUblkStatus
  ublkStart(index: number): Promise<void>
  ublkResume(index: number): Promise<void>
  ublkStop(index: number): Promise<void>
  ublkDelete(index: number): Promise<void>
}

// By name, so that it is found also from a bundle that holds this file. A bundle of CommonJS has no import.meta.url.
const require = createRequire(import.meta.url ?? __filename)

export const native = require('@rdmakit/nbd-client/addon') as NativeBinding
