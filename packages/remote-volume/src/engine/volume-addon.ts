// The part of an addon that @rdmakit/remote-volume calls. Each package with a front has its own addon, which
// compiles in the native sources of the volume, because no addon links another, and passes it as an argument.

/** A type-tagged `napi_external` that carries a verbs object from `@rdmakit/verbs`. */
export type VerbsHandle = object

/** The native `Engine` behind a JavaScript external. */
export type NativeEngine = { readonly __volumeEngine: unique symbol }

/** `lz4` turns itself off where it does not pay, `lz4-always` does not. */
export type Compress = 'none' | 'lz4' | 'lz4-always'

export interface NativeBackupOptions {
  /** empty: no backup */
  file: string
  /** empty: none */
  map: string
  /** of the queue of each lane */
  pages: number
  sparse: boolean
}

/** What a front wants to know comes beside: {@link VolumeEngine} passes it on as it is. */
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
  resync: boolean
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
  /** written or being written, and neither in the file nor queued for it; with `queuedPages` 0, the file has all */
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
  lanes: NativeLaneStatistics[]
  servers: NativeServerStatistics[]
  refill: NativeRefillStatistics | null
  backup: NativeBackupStatistics | null
}

export type NativeEvent =
  /** lane: the one that noticed, -1 when it was `failServer` */
  | { type: 'serverFailed'; server: number; lane: number; reason: string }
  | { type: 'slabRefilled'; slab: number; server: number }
  | { type: 'refillFailed'; slab: number; server: number; reason: string }
  | { type: 'synchronized'; epoch: number }
  /** spare places were used up or are missing, or slabs may have become empty */
  | { type: 'slabsChanged' }
  /** `page`, of the volume, did not match its checksum at `server` */
  | { type: 'pageRepaired'; slab: number; server: number; page: number }
  /** the same, and nobody has the right bytes; server: null when it was at the backup only */
  | { type: 'pageLost'; slab: number; server: number | null; page: number }
  | { type: 'backupFailed'; reason: string }

/** The addon's functions of a volume. Each throws an Error with `code` (errno name) and `syscall` on failure. */
export interface VolumeAddon {
  laneRequirements(): NativeLaneRequirements
  /** @param sink takes each {@link NativeEvent}, and those of the front */
  createEngine(options: NativeEngineOptions, sink: (event: { readonly type: string }) => void): NativeEngine
  mapSlab(engine: NativeEngine, slab: number, replicas: NativeReplica[]): void
  leftClaimed(engine: NativeEngine): number[]
  nextToResync(engine: NativeEngine): number | null
  lookUpSlab(engine: NativeEngine, slab: number): NativeRecordedReplica[] | null
  replaceSlab(engine: NativeEngine, slab: number, place: NativeReplica, contentsLost: boolean): void
  addReplica(engine: NativeEngine, slab: number, replica: NativeReplica): void
  moveReplica(engine: NativeEngine, slab: number, from: number, to: NativeReplica): void
  setWaits(engine: NativeEngine): void
  stampBackup(engine: NativeEngine): void
  failedServers(engine: NativeEngine): number[]
  retireReplica(engine: NativeEngine, slab: number, server: number): void
  dropReplica(engine: NativeEngine, slab: number, server: number, absent: boolean): NativeDropped
  dropRetired(engine: NativeEngine, slab: number, server: number): NativeDropped
  refill(engine: NativeEngine, slab: number, server: number): void
  backupWarnings(engine: NativeEngine): string[]
  missingInBackup(engine: NativeEngine, slab: number): number
  lackingInBackup(engine: NativeEngine, slab: number): number
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
  addRefillLane: VolumeAddon['addLane']
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
  pinLane(engine: NativeEngine, lane: number, processors: readonly number[]): void
  statistics(engine: NativeEngine): NativeStatistics
  setLimits(engine: NativeEngine, server: number, bytes: bigint, operations: bigint): void
  usage(engine: NativeEngine, server: number): { bytes: number; operations: number }
  /** milliseconds */
  idle(engine: NativeEngine, slab: number): number
  close(engine: NativeEngine, timeout: number): Promise<void>
}
