import { integerInRange } from '../base/arguments.js'
import { calling, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import { type Handle, type NativeMemoryOptions, native } from '../native.js'
import { noteWritten } from './changing.js'

const ACCESS = {
  'local-write': 1,
  'remote-write': 2,
  'remote-read': 4,
  'remote-atomic': 8,
  'bind-memory-window': 16,
} as const

/**
 * What may be done with memory (ibv_reg_mr(3)). `remote-write` and `remote-atomic` imply `local-write`;
 * `bind-memory-window` lets a {@link MemoryWindow} be bound to it.
 */
export type Access = keyof typeof ACCESS

/** @internal */
export function accessBits(access: readonly Access[], { window = false } = {}): number {
  let bits = 0
  for (const one of access) {
    if (!(one in ACCESS)) throw new UsageError(`unknown access "${one}"`)
    bits |= ACCESS[one]
    if (!window && (one === 'remote-write' || one === 'remote-atomic')) bits |= ACCESS['local-write']
  }
  return bits
}

const HUGE_PAGES = ['transparent', 'none', '2MiB', '1GiB'] as const

/** With any of these a device may write there. */
const WRITTEN = ACCESS['local-write'] | ACCESS['remote-write'] | ACCESS['remote-atomic']

/** How {@link ProtectionDomain.allocateMemoryRegion} maps memory. */
export interface MemoryOptions {
  /**
   * `transparent` (default): when the kernel has some (madvise(2) MADV_HUGEPAGE). `none`: never. `2MiB` and
   * `1GiB`: from the pool of hugetlbfs, ENOMEM when too few are reserved (`vm.nr_hugepages`); not over `shm`
   * (EOPNOTSUPP), whose peers map the memory and must be sure that it is there.
   */
  readonly hugePages?: (typeof HUGE_PAGES)[number] | undefined
  /** the NUMA node whose memory it must be (mbind(2), MPOL_BIND), from 0; default: the touching thread's */
  readonly numaNode?: number | undefined
  /** keep it in memory (mlock(2)); ENOMEM or EPERM beyond `ulimit -l`. Real devices pin it anyway */
  readonly locked?: boolean | undefined
  /** back it by a memfd, which another mapping can share; over `shm` it always is */
  readonly memfd?: boolean | undefined
  /**
   * true (default): all pages are resident from the start, so nothing waits for one later, and a lack of memory is ENOMEM
   * here. false: each page becomes resident on first use, a peer's too. Devices that pin memory populate all of it
   * anyway. So is what a memfd backs, over `shm` all of it, where the kernel accounts strictly (`vm.overcommit_memory` 2):
   * who touches a page that is refused then, this process or a peer that maps it, would end
   */
  readonly populated?: boolean | undefined
}

/** @internal */
export function nativeMemoryOptions({
  hugePages = 'transparent',
  numaNode = -1,
  locked = false,
  memfd = false,
  populated = true,
}: MemoryOptions): NativeMemoryOptions {
  const pages = HUGE_PAGES.indexOf(hugePages)
  if (pages < 0) throw new UsageError(`huge pages are ${HUGE_PAGES.join(', ')}, not "${hugePages}"`)
  if (numaNode !== -1) integerInRange('a NUMA node', numaNode)
  return { hugePages: pages, numaNode, locked, shared: memfd, populated }
}

/** A slice of a memory region as work requests name it. */
export interface ScatterGatherElement {
  /** where the bytes are */
  readonly region: MemoryRegion
  /** bytes from the region's start, default 0 */
  readonly offset?: number | undefined
  /** bytes, default to the region's end */
  readonly length?: number | undefined
}

/** Registered memory (ibv_mr) and the one ArrayBuffer over it. */
export class MemoryRegion extends Resource {
  /** bytes */
  readonly length: number
  /** virtual address, as remote peers name it */
  readonly address: bigint
  /** @internal memory of this process, which a DMA buffer is not */
  readonly mapped: boolean
  #protectionDomain: ProtectionDomain
  #localKey: number
  #remoteKey: number
  #buffer: ArrayBuffer | undefined
  #given = false
  /** of the caller */
  readonly #registered: ArrayBufferLike | undefined

  /**
   * @internal made by {@link ProtectionDomain.allocateMemoryRegion} and its siblings
   * @param registered the caller's memory that it is over, and the bits of its access
   */
  constructor(
    protectionDomain: ProtectionDomain,
    handle: Handle,
    registered?: { readonly buffer: ArrayBufferLike; readonly bits: number },
  ) {
    super(handle, [protectionDomain])
    this.#registered = registered?.buffer
    this.#noteWritten(registered?.bits)
    this.#protectionDomain = protectionDomain
    const info = native.mrInfo(handle)
    this.length = info.length
    this.address = info.address
    this.mapped = info.mapped
    this.#localKey = info.localKey
    this.#remoteKey = info.remoteKey
  }

  get description(): string {
    return `memory region 0x${this.#remoteKey.toString(16)} (${this.length} bytes)`
  }

  /** The domain whose queue pairs may use the region. */
  get protectionDomain(): ProtectionDomain {
    return this.#protectionDomain
  }

  /** Names the region in work requests of this side (lkey). */
  get localKey(): number {
    return this.#localKey
  }

  /** Names the region to peers (rkey); any peer that has it can do what the region's access allows. */
  get remoteKey(): number {
    return this.#remoteKey
  }

  /**
   * The memory itself; always the same ArrayBuffer. For a caller's own view it is the whole underlying ArrayBuffer; offsets
   * in work requests count from the view's first byte.
   *
   * It keeps its bytes after {@link close}, because views may wait in a stream, and `fs.read` or `socket.write` may be
   * working on one. The memory is unmapped, and may be reused, when the ArrayBuffer is unreachable ({@link keptMemory}).
   *
   * A peer that may write there (`remote-write`, a posted receive) may do so while you read. Decode, parse, check and
   * compare a copy: TextDecoder and Buffer.toString first measure and then write, and overrun their buffer if bytes
   * change in between, which crashes the process or worse.
   */
  get buffer(): ArrayBuffer {
    this.give()
    return this.ownBuffer
  }

  /** @internal the program got a view of it, and may hand that to I/O; idempotent, and of a region that is closed nothing */
  give(): void {
    // Nothing else, so that it costs nothing where it is called for each message.
    if (!this.#given) this.#give()
  }

  #give(): void {
    if (this.closed) return
    this.#buffer = calling(this.description, () => native.mrBuffer(this.handle, true))
    noteWritten(this.#buffer)
    this.#given = true
  }

  /** @internal the same, for code that gives no part of it away: it is detached, and unmapped, by {@link close} */
  get ownBuffer(): ArrayBuffer {
    if (this.#buffer === undefined)
      this.#buffer = calling(this.description, () => native.mrBuffer(this.handle, false))
    return this.#buffer
  }

  /**
   * {@link close}, off the JavaScript thread: deregistering a gigabyte takes a while.
   * @returns resolves when the device has released the memory, which may be late, as with {@link destroyed}
   */
  async closeAsync(): Promise<void> {
    await this.closeElsewhere()
  }

  /**
   * Changes the region's rights, or moves it to another protection domain (ibv_rereg_mr(3)). Its keys may
   * change, and the old ones are dead when this returns. Nothing that uses the region may be outstanding. Over shm
   * it waits up to 5 seconds, in this thread, for a peer that says that it is in the middle of an access.
   * @throws VerbsError EOPNOTSUPP: the device cannot (`capabilities.reregister`); EBUSY: a memory window is
   *   bound to it
   */
  reregister(change: {
    readonly access: readonly Access[]
    readonly protectionDomain?: ProtectionDomain | undefined
  }): void {
    const { access, protectionDomain = this.#protectionDomain } = change
    const moves = protectionDomain !== this.#protectionDomain
    const bits = accessBits(access)
    calling(this.description, () =>
      native.reregMr(this.handle, moves ? protectionDomain.handle : undefined, bits),
    )
    this.#noteWritten(bits)
    if (moves) {
      this.adopt(this.#protectionDomain, protectionDomain)
      this.#protectionDomain = protectionDomain
    }
    const info = native.mrInfo(this.handle)
    this.#localKey = info.localKey
    this.#remoteKey = info.remoteKey
  }

  #noteWritten(bits = 0): void {
    if (this.#registered !== undefined && (bits & WRITTEN) !== 0) noteWritten(this.#registered)
  }
}

/** Memory of regions that are closed. */
export interface KeptMemory {
  /** how many there are */
  readonly regions: number
  /** what they take */
  readonly bytes: number
}

/**
 * Memory that this thread's closed regions keep, because their ArrayBuffers are still reachable or not yet collected. At
 * 256 MiB, and whenever it reaches twice what a collection left, V8 is made to collect.
 * @returns how many regions, and their bytes
 */
export function keptMemory(): KeptMemory {
  return native.keptMemory()
}

/** @internal the native form of scatter/gather elements, bounds checked */
export function nativeSges(elements: readonly ScatterGatherElement[]) {
  return elements.map(({ region, offset = 0, length = region.length - offset }) => {
    if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(length) || offset < 0 || length < 0)
      throw new UsageError(
        `offset and length must be whole numbers of bytes from 0, not ${offset} and ${length}`,
      )
    if (offset + length > region.length)
      throw new UsageError(
        `bytes ${offset}…${offset + length} are outside of a region of ${region.length} bytes`,
      )
    if (region.closed) throw new UsageError(`${region.description} is closed`)
    return { address: region.address + BigInt(offset), length, localKey: region.localKey }
  })
}
