import { availableParallelism } from 'node:os'
import type { BackupOptions } from './backup-options.js'
import type { Compress, NativeEngineOptions } from './volume-addon.js'

/**
 * How a lane waits for completions and requests. `poll` looks on for ever (a full core, which it yields to
 * any thread that wants it), `event` sleeps at once, `adaptive` looks on for about as long as waits have lately taken
 * and then sleeps.
 */
export type WaitMode = 'poll' | 'event' | 'adaptive'

export interface VolumeEngineOptions {
  /** bytes; a multiple of 4096 */
  readonly size: number | bigint
  /** bytes; a power of two ≥ 1 MiB; default 64 MiB. The last slab may be used in part. */
  readonly slabSize?: number | undefined
  /** refuse WRITE, TRIM and WRITE_ZEROES with EPERM; default false */
  readonly readOnly?: boolean | undefined
  /** milliseconds that one RDMA operation may take before its server counts as failed; default 4000 */
  readonly operationTimeout?: number | undefined
  /** default `adaptive` */
  readonly waitMode?: WaitMode | undefined
  /**
   * Maximum microseconds for which `adaptive` looks on for a completion, or with none under way for a request, before it
   * sleeps; default 100, and 10 with one processor, where others can only work for it while it yields. It yields before
   * each look, and looks on for no longer than twice what waits have lately taken, so a lane that is idle, or whose
   * device is slow, sleeps at once, but for one wait in 16 to 4096, in which it tries.
   */
  readonly maxSpin?: number | undefined
  /** touch the whole page map at start (2 bits per 4 KiB of volume); default false */
  readonly prefault?: boolean | undefined
  /**
   * For swap: marks the lanes as part of the I/O path (PR_SET_IO_FLUSHER) and locks their arenas. If either is not granted,
   * `VolumeEngine.addLane` warns. Default false.
   */
  readonly ioFlusher?: boolean | undefined
  /**
   * When a write to several replicas is answered: `all` (default), when every live one has it; `one`, when
   * the first has it, which may then be lost with that server (EIO, never old data); `backup`, when every live
   * one and the backup have it.
   */
  readonly acknowledge?: 'all' | 'one' | 'backup' | undefined
  /** a copy on this machine, not of a thin engine; `pages` of the queue are each lane's, 128 … 4096, default 1024; default: none */
  readonly backup?: (Omit<BackupOptions, 'queue'> & { readonly pages?: number }) | undefined
  /**
   * Bytes to read ahead of a client that reads sequentially, in units of 65536, at most 1 MiB; default 256 KiB, 0: none.
   */
  readonly readAhead?: number | undefined
  /** maximum bytes per second that `VolumeEngine.refill` copies; default 0, no limit */
  readonly refillRate?: number | undefined
  /**
   * File (on tmpfs, such as /run) that keeps the page map, so that a successor of this process knows
   * which pages were written. Created when missing, refused with EINVAL when it is of another size. Writes
   * that were never answered when the process died must be repeated by their sender, as the kernel does.
   * Default: memory of this process; a successor would then read zeros.
   */
  readonly pageMap?: string | undefined
  /**
   * Keep the CRC32C of each page that is written as a whole, and verify it when the page is read: a wrong page is repaired
   * from another replica, or answers EIO. Costs 4 bytes of memory per written page. Default true.
   */
  readonly checksums?: boolean | undefined
  /**
   * An unmapped slab takes one of the places of `VolumeEngine.addSpare` when it is first written; without one the
   * request waits, up to the operation timeout. Default false: such requests answer EIO.
   */
  readonly thin?: boolean | undefined
  /** as {@link VolumeEngineOptions.pageMap}, for the checksums; used with `checksums` only */
  readonly pageChecksums?: string | undefined
  /**
   * Compress pages on their way to the servers and back (docs/page-service/compression.md): `lz4` where it pays,
   * `lz4-always` in any case. Needs `checksums`, and liblz4: ENOPKG without. Requests that are no multiple of 4096
   * are refused then, whatever `minimumBlockSize` is. Default `none`.
   */
  readonly compress?: Compress | undefined
  /**
   * As {@link VolumeEngineOptions.pageMap}, for the lengths of compressed pages. Given to a volume once, it belongs to
   * it for as long as its pages live, also when `compress` is `none` now.
   */
  readonly pageLengths?: string | undefined
  /**
   * File, beside `pageMap`, that keeps where the slabs are and which servers have failed (see
   * {@link VolumeEngine.lookUpSlab}). The same rules. Default: memory of this process.
   */
  readonly slabMap?: string | undefined
  /**
   * The caller makes the replicas of {@link VolumeEngine.leftClaimed} alike before it lets clients in, by
   * `resyncReplicas`: until then these pages stay claimed in `pageMap`, and requests for them wait. Default false: their
   * senders repeat the WRITEs, and these pages are as any others.
   */
  readonly resync?: boolean | undefined
}

/** With the defaults, as the addon takes it. */
export function nativeOptions(options: VolumeEngineOptions, slabSize: number): NativeEngineOptions {
  return {
    size: BigInt(options.size),
    slabSize: BigInt(slabSize),
    readOnly: options.readOnly ?? false,
    operationTimeout: options.operationTimeout ?? 4000,
    waitMode: options.waitMode ?? 'adaptive',
    maxSpin: options.maxSpin ?? (availableParallelism() > 1 ? 100 : 10),
    prefault: options.prefault ?? false,
    ioFlusher: options.ioFlusher ?? false,
    acknowledge: options.acknowledge ?? 'all',
    backup: {
      file: options.backup?.file ?? '',
      map: options.backup?.map ?? '',
      pages: options.backup?.pages ?? 1024,
      sparse: options.backup?.sparse ?? false,
    },
    readAhead: options.readAhead ?? 256 * 1024,
    refillRate: BigInt(options.refillRate ?? 0),
    pageMap: options.pageMap ?? '',
    checksums: options.checksums ?? true,
    thin: options.thin ?? false,
    pageChecksums: options.pageChecksums ?? '',
    compress: options.compress ?? 'none',
    pageLengths: options.pageLengths ?? '',
    slabMap: options.slabMap ?? '',
    resync: options.resync ?? false,
  }
}
