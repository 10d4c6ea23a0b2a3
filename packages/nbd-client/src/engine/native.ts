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
  /**
   * Prepares this process to serve swap: locks the memory that lanes use (all but V8's own heap, see
   * packages/remote-volume/native/system/swap_safety.h) and asks the OOM killer to spare it. Says of each protection whether it
   * was granted, and why not. Call it after the lanes are made, and again after more were added.
   */
  protectProcess(): NativeSafety[]
  /**
   * Marks this thread, those that it starts, and what {@link replaceProcess} executes as part of the I/O path
   * (PR_SET_IO_FLUSHER of prctl(2)): to get memory they never write to a device.
   * @returns true when it is only now: threads that were there before are not marked. False, too, where it is not permitted
   */
  becomeIoFlusher(): boolean
  /**
   * Locks a file, made if it is missing, until the descriptor is closed or the process ends.
   * @throws EBUSY: another process has it
   */
  lockFile(path: string): number
  /** Both ends of a socket over which open files go from process to process. The caller closes them. */
  descriptorChannel(): [number, number]
  /** Sends 1 to 253 descriptors to the receiver at the other end; they also stay the caller's. */
  sendDescriptors(channel: number, descriptors: readonly number[]): void
  /**
   * Receives the descriptors of one call of {@link sendDescriptors}, now the caller's. @throws EAGAIN: there is nothing
   */
  receiveDescriptors(channel: number): number[]
  /** Closes a descriptor that BlockEngine.attachSocketpair gave, once the kernel has it. */
  closeDescriptor(descriptor: number): void
  /**
   * Executes another program in this process, with its environment, control group, standard input, output and
   * error, and without its memory. No `exit` event comes first.
   * @param program found by PATH @param kept more descriptors that stay open @throws Error with the `code` of
   * execve(2), and this process continues
   */
  replaceProcess(program: string, words: readonly string[], kept: readonly number[]): void
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
