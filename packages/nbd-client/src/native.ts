import { createRequire } from 'node:module'

/** A type-tagged `napi_external` that carries a verbs object from `@rdmakit/verbs`. */
export type VerbsHandle = object

/** The native `Engine` behind a JavaScript external. */
export type NativeEngine = { readonly __nbdEngine: unique symbol }

/** `lz4` turns itself off where it does not pay, `lz4-always` does not. */
export type Compress = 'none' | 'lz4' | 'lz4-always'

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

export interface NativeBackupOptions {
  /** empty: no backup */
  file: string
  /** empty: none */
  map: string
  /** of the queue of each lane */
  pages: number
  sparse: boolean
}

export interface NativeEngineOptions {
  size: bigint
  slabSize: bigint
  readOnly: boolean
  operationTimeout: number
  waitMode: 'poll' | 'event' | 'adaptive'
  maxSpin: number
  prefault: boolean
  ioFlusher: boolean
  acknowledge: 'all' | 'one' | 'backup'
  backup: NativeBackupOptions
  readAhead: number
  refillRate: bigint
  pageMap: string
  checksums: boolean
  thin: boolean
  /** empty: none */
  pageChecksums: string
  compress: Compress
  /** empty: none */
  pageLengths: string
  slabMap: string
  exports: NativeExport[]
  minimumBlockSize: number
  tls: NativeTls
  handshakeTimeout: number
  maxHandshakes: number
  stallTimeout: number
  laneWait: number
}

export interface NativeLaneRequirements {
  arenaBytes: number
  sendQueueDepth: number
  completionQueueEntries: number
  maxInlineData: number
}

/** Latencies in nanoseconds. A snapshot: counted one after another, while requests go on. */
export interface NativeHistogram {
  sum: number
  /** those that are not empty, ascending: from, up to (and not with) and how many; at most a quarter wide */
  buckets: [from: number, to: number, count: number][]
}

export interface NativeLaneStatistics {
  state: 'idle' | 'serving' | 'draining' | 'stopped'
  connections: number
  reads: number
  writes: number
  flushes: number
  trims: number
  writeZeroes: number
  caches: number
  blockStatuses: number
  bytesRead: number
  bytesWritten: number
  errors: number
  inFlight: number
  rdmaReads: number
  rdmaWrites: number
  rdmaFences: number
  outstandingOperations: number
  pagesReadWithoutNetwork: number
  /** of clients that read in order, and what of it they got */
  pagesReadAhead: number
  bytesFromReadAhead: number
  /** written without network, for they were all zeros */
  zeroPages: number
  /** written compressed */
  pagesCompressed: number
  /** that were neither sent nor fetched because of that; each replica counts */
  bytesSpared: number
  /** pages that are written now are compressed */
  compressing: boolean
  /** copies at a server that did not match their checksum */
  pagesWrong: number
  /** of them, written anew from another replica */
  pagesRepaired: number
  pagesWaitedFor: number
  /** operations that a server's limits held back */
  turnsWaitedFor: number
  spins: number
  sleeps: number
  spinLimit: number
  readLatency: NativeHistogram
  writeLatency: NativeHistogram
}

/** Sums of all lanes. */
export interface NativeServerStatistics {
  server: number
  reads: number
  writes: number
  bytesRead: number
  bytesWritten: number
  outstandingOperations: number
}

export interface NativeRefillStatistics {
  /** a slab is being filled; slab, pagesDone and pages are about it, or about the last one */
  active: boolean
  slab: number
  pagesDone: number
  pages: number
  slabsFilled: number
  bytesCopied: number
}

export interface NativeBackupStatistics {
  file: string
  /** false: it has failed */
  working: boolean
  bytesWritten: number
  bytesRead: number
  /** on their way to the file */
  queuedPages: number
  /** written, and neither in the file nor on their way there */
  stalePages: number
  /** for which the queue had no room when they were written */
  missedPages: number
  /** copied from a server later */
  caughtUpPages: number
}

/** Where a slab's bytes are. */
export interface NativeReplica {
  server: number
  remoteKey: number
  address: bigint
}

export interface NativeRecordedReplica extends NativeReplica {
  /** it holds every written page and counts; else it was being filled, or it is `leaving` */
  live: boolean
  /** it holds every written page, and is about to be dropped */
  leaving: boolean
}

export interface NativeDropped {
  /** it could be read */
  wasLive: boolean
  /** other replicas that can be, also those of servers that have failed */
  liveLeft: number
}

export interface NativeStatistics {
  failedServers: number[]
  writtenPages: number
  lostPages: number
  compress: Compress
  /** slabs that have a place, or have lost it */
  mappedSlabs: number
  /** places that are ready for slabs of a thin volume */
  sparePlaces: number
  handshakes: number
  handshakesRefused: number
  lanes: NativeLaneStatistics[]
  servers: NativeServerStatistics[]
  refill: NativeRefillStatistics | null
  backup: NativeBackupStatistics | null
}

export type NativeEvent =
  /** lane: the one that noticed, -1 when it was `failServer` */
  | { type: 'serverFailed'; server: number; lane: number; reason: string }
  | { type: 'connectionOpened'; lane: number }
  | { type: 'connectionClosed'; lane: number; reason: string }
  | { type: 'laneIdle'; lane: number }
  | { type: 'handshakeRefused'; peer: string; reason: string }
  | { type: 'listenerFailed'; address: string; reason: string }
  | { type: 'slabRefilled'; slab: number; server: number }
  | { type: 'refillFailed'; slab: number; server: number; reason: string }
  | { type: 'synchronized'; epoch: number }
  /** spare places were used up or are missing, or slabs may have become empty */
  | { type: 'slabsChanged' }
  /** `page`, of the volume, did not match its checksum at `server` */
  | { type: 'pageRepaired'; slab: number; server: number; page: number }
  /** the same, and nobody has the right bytes; server: null when it was at the backup only */
  | { type: 'pageLost'; slab: number; server: number | null; page: number }
  /** descriptor: −1 when there was no connection */
  | { type: 'laneYielded'; lane: number; descriptor: number }
  | { type: 'backupFailed'; reason: string }

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
export interface NativeBinding {
  laneRequirements(): NativeLaneRequirements
  createEngine(options: NativeEngineOptions, sink: (event: NativeEvent) => void): NativeEngine
  exportFlags(engine: NativeEngine): number
  mapSlab(engine: NativeEngine, slab: number, replicas: NativeReplica[]): void
  leftClaimed(engine: NativeEngine): number[]
  lookUpSlab(engine: NativeEngine, slab: number): NativeRecordedReplica[] | null
  replaceSlab(engine: NativeEngine, slab: number, place: NativeReplica, contentsLost: boolean): void
  addReplica(engine: NativeEngine, slab: number, replica: NativeReplica): void
  moveReplica(engine: NativeEngine, slab: number, from: number, to: NativeReplica): void
  setWaits(engine: NativeEngine): void
  stampBackup(engine: NativeEngine): void
  failedServers(engine: NativeEngine): number[]
  retireReplica(engine: NativeEngine, slab: number, server: number): void
  dropReplica(engine: NativeEngine, slab: number, server: number, absent: boolean): NativeDropped
  refill(engine: NativeEngine, slab: number, server: number): void
  backupWarnings(engine: NativeEngine): string[]
  missingInBackup(engine: NativeEngine, slab: number): number
  synchronize(engine: NativeEngine): number
  addSpare(engine: NativeEngine, id: number, replicas: NativeReplica[]): void
  removeSpare(engine: NativeEngine, id: number): boolean
  collectSpares(engine: NativeEngine): { id: number; slab: number }[]
  setExhausted(engine: NativeEngine): void
  takeCleared(engine: NativeEngine): number[]
  vacateSlab(engine: NativeEngine, slab: number): boolean
  addLane(
    engine: NativeEngine,
    completionQueue: VerbsHandle,
    channel: VerbsHandle | undefined,
    queuePairs: (VerbsHandle | undefined)[],
    memoryRegions: VerbsHandle[],
  ): { index: number; warnings: string[] }
  addRefillLane(
    engine: NativeEngine,
    completionQueue: VerbsHandle,
    channel: VerbsHandle | undefined,
    queuePairs: (VerbsHandle | undefined)[],
    memoryRegions: VerbsHandle[],
  ): { index: number; warnings: string[] }
  connectServer(
    engine: NativeEngine,
    lane: number,
    server: number,
    queuePair: VerbsHandle,
    memoryRegion: VerbsHandle | undefined,
  ): void
  failServer(engine: NativeEngine, server: number, reason: string): void
  disconnectServer(engine: NativeEngine, server: number): void
  releaseServer(engine: NativeEngine, server: number): void
  bindUnix(engine: NativeEngine, path: string): void
  acceptClients(engine: NativeEngine): void
  bindTcp(engine: NativeEngine, host: string, port: number): { host: string; port: number }
  pinLane(engine: NativeEngine, lane: number, processors: readonly number[]): void
  attachSocketpair(engine: NativeEngine, lane: number): number
  attachSocket(engine: NativeEngine, lane: number, descriptor: number): void
  attachDevice(engine: NativeEngine, lanes: number[], descriptor: number): void
  yieldLane(engine: NativeEngine, lane: number): void
  resumeLane(engine: NativeEngine, lane: number): void
  statistics(engine: NativeEngine): NativeStatistics
  setLimits(engine: NativeEngine, server: number, bytes: bigint, operations: bigint): void
  usage(engine: NativeEngine, server: number): { bytes: number; operations: number }
  /** milliseconds */
  idle(engine: NativeEngine, slab: number): number
  close(engine: NativeEngine, timeout: number): Promise<void>
  protectProcess(): NativeSafety[]
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
