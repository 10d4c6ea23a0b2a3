import { integerInRange, word } from '../base/arguments.js'
import { calling, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { MemoryRegion } from '../memory/memory-region.js'
import { type Handle, type NativeSlots, native } from '../native.js'
import type { QueuePair } from './queue-pair.js'
import type { SharedReceiveQueue } from './shared-receive-queue.js'
import { flagBits, OPCODES, type SendFlags } from './work-request.js'

const HIGH = 2 ** 32

/** The common part of both kinds of slots. */
abstract class Slots extends Resource {
  /**
   * The slots themselves, little-endian records of native memory. A slot may be edited as soon as the `post` of its last
   * request has returned, because the device has then taken the request.
   */
  readonly buffer: ArrayBuffer
  /** how many slots there are */
  readonly count: number
  /** @internal */
  protected readonly view: DataView
  /** @internal */
  protected readonly words: Uint32Array
  readonly #regions: readonly MemoryRegion[]
  readonly #object: string
  readonly #post: NativeSlots['post']

  protected constructor(
    queue: QueuePair | SharedReceiveQueue,
    count: number,
    regions: readonly MemoryRegion[],
    make: (handles: Handle[]) => NativeSlots,
  ) {
    integerInRange('the number of slots', count, 1, 65536)
    const made = calling(queue.description, () => make(regions.map(({ handle }) => handle)))
    super(made.handle, [...new Set([queue, ...regions])])
    this.buffer = made.buffer
    this.count = count
    this.view = new DataView(made.buffer)
    this.words = new Uint32Array(made.buffer)
    this.#regions = regions
    this.#object = queue.description
    this.#post = made.post
  }

  get description(): string {
    return `slots of ${this.#object}`
  }

  /**
   * Posts slots `first` … `first + count - 1` in order. Allocates nothing.
   * @returns how many were posted; fewer than `count` when the queue is full
   * @throws VerbsError EINVAL: a slot that names bytes outside of its regions or an unknown operation, or a
   *   state that allows no posting; its message says how many slots were posted before
   */
  post(first: number, count: number): number {
    try {
      return this.#post(first, count)
    } catch (failure) {
      if (this.closed) throw new UsageError(`${this.description} are closed`)
      return calling(this.#object, () => {
        throw failure
      })
    }
  }

  /** @internal the word at which a slot starts */
  protected abstract at(slot: number): number

  /** @internal what {@link setLocal} takes on trust */
  protected checkLocal(slot: number, offset: number, length: number, region: MemoryRegion | undefined): void {
    integerInRange('a slot', slot, 0, this.count - 1)
    integerInRange('an offset', offset, 0, Number.MAX_SAFE_INTEGER)
    integerInRange('a length', length)
    if (length > 0 && region === undefined) throw new UsageError('bytes need a region')
  }

  /**
   * Sets the slot's memory: `length` bytes from `offset` on in the region of this index. Unchecked, like all setters but
   * `set`: numbers that do not fit are truncated, and `post` refuses bytes outside of the region.
   */
  setLocal(slot: number, offset: number, length: number, region = 0): void {
    const at = this.at(slot)
    const words = this.words
    words[at + 2] = offset
    words[at + 3] = offset / HIGH
    words[at + 4] = length
    words[at + 5] = region
  }

  /** What comes back in the completion, a whole number from 0 to 2^53 - 1. */
  setWorkRequestId(slot: number, id: number): void {
    const at = this.at(slot)
    this.words[at] = id
    this.words[at + 1] = id / HIGH
  }

  /** The index of a region, as `setLocal` takes it. @throws UsageError for one that the slots were not made with */
  regionIndex(region: MemoryRegion): number {
    const index = this.#regions.indexOf(region)
    if (index < 0) throw new UsageError(`${this.description} were not created with ${region.description}`)
    return index
  }
}

/** What {@link SendSlots.set} puts into a slot. */
export interface SendSlot extends SendFlags {
  /** which operation */
  readonly opcode: Exclude<keyof typeof OPCODES, 'bind-memory-window'>
  /** handed back in the completion, default 0, below 2^53 */
  readonly workRequestId?: number | undefined
  /** where the bytes are; one that the slots were made with */
  readonly region?: MemoryRegion | undefined
  /** bytes from the region's start, default 0 */
  readonly offset?: number | undefined
  /** bytes, default 0 */
  readonly length?: number | undefined
  /** virtual address in the peer's memory */
  readonly remoteAddress?: bigint | undefined
  /** the peer's key */
  readonly remoteKey?: number | undefined
  /** 32 bits of immediate data */
  readonly immediate?: number | undefined
  /** the window that a `…-invalidate` takes away */
  readonly invalidateKey?: number | undefined
  /** of `compare-and-swap` */
  readonly compare?: bigint | undefined
  /** of `compare-and-swap` */
  readonly swap?: bigint | undefined
  /** of `fetch-and-add` */
  readonly add?: bigint | undefined
}

/**
 * Send work requests in an ArrayBuffer: set once, edited in place, posted many at a time. What DiSNI calls
 * stateful verbs. A slot has 64 bytes: u64 workRequestId, u64 offset, u32 length, u32 region index, u64
 * remoteAddress, u32 remoteKey, u32 immediate (or key to invalidate), u32 opcode (`enum ibv_wr_opcode`),
 * u32 flags (`enum ibv_send_flags`), u64 compare (or add), u64 swap.
 */
export class SendSlots extends Slots {
  /** bytes of a slot */
  static readonly BYTES = 64

  /** @internal made by {@link QueuePair.createSendSlots} */
  constructor(queuePair: QueuePair, count: number, regions: readonly MemoryRegion[]) {
    super(queuePair, count, regions, (handles) => native.createSendSlots(queuePair.handle, handles, count))
  }

  protected at(slot: number): number {
    return slot * 16
  }

  /** Fills a slot. */
  set(slot: number, request: SendSlot): void {
    const { opcode, region, offset = 0, length = 0 } = request
    this.checkLocal(slot, offset, length, region)
    if (!(opcode in OPCODES) || (opcode as string) === 'bind-memory-window')
      throw new UsageError(`unknown opcode "${opcode}"`)
    integerInRange('immediate data', request.immediate ?? 0)
    integerInRange('a key', request.remoteKey ?? 0)
    integerInRange('a key', request.invalidateKey ?? 0)
    for (const one of [request.remoteAddress, request.compare, request.add, request.swap])
      word('an address or operand', one ?? 0n)
    this.setWorkRequestId(
      slot,
      integerInRange('a work request id', request.workRequestId ?? 0, 0, Number.MAX_SAFE_INTEGER),
    )
    this.setLocal(slot, offset, length, region === undefined ? 0 : this.regionIndex(region))
    this.setRemote(slot, request.remoteAddress ?? 0n, request.remoteKey ?? 0)
    this.setImmediate(slot, request.immediate ?? request.invalidateKey ?? 0)
    const at = this.at(slot)
    this.words[at + 10] = OPCODES[opcode]
    this.words[at + 11] = flagBits(request)
    this.view.setBigUint64(slot * SendSlots.BYTES + 48, request.compare ?? request.add ?? 0n, true)
    this.view.setBigUint64(slot * SendSlots.BYTES + 56, request.swap ?? 0n, true)
  }

  /** The peer's memory. A `number` address is exact up to 2^53 and costs no BigInt. */
  setRemote(slot: number, address: bigint | number, key: number): void {
    const at = this.at(slot)
    if (typeof address === 'bigint') {
      this.view.setBigUint64(slot * SendSlots.BYTES + 24, address, true)
    } else {
      this.words[at + 6] = address
      this.words[at + 7] = address / HIGH
    }
    this.words[at + 8] = key
  }

  /** 32 bits of immediate data, or the key that a `…-invalidate` takes away. */
  setImmediate(slot: number, immediate: number): void {
    this.words[this.at(slot) + 9] = immediate
  }

  /** Asks for a completion, or not. */
  setSignaled(slot: number, signaled: boolean): void {
    const at = this.at(slot) + 11
    const bit = flagBits({ signaled: true })
    this.words[at] = signaled ? (this.words[at] as number) | bit : (this.words[at] as number) & ~bit
  }
}

/**
 * Receive work requests in an ArrayBuffer. A slot has 32 bytes: u64 workRequestId, u64 offset, u32 length,
 * u32 region index, 8 reserved.
 */
export class ReceiveSlots extends Slots {
  /** bytes of a slot */
  static readonly BYTES = 32

  /** @internal made by `createReceiveSlots` of a queue pair or a shared receive queue */
  constructor(
    queue: QueuePair | SharedReceiveQueue,
    count: number,
    regions: readonly MemoryRegion[],
    shared: boolean,
  ) {
    super(queue, count, regions, (handles) => native.createReceiveSlots(queue.handle, handles, count, shared))
  }

  protected at(slot: number): number {
    return slot * 8
  }

  /** Fills a slot. */
  set(
    slot: number,
    request: {
      workRequestId?: number | undefined
      region?: MemoryRegion | undefined
      offset?: number | undefined
      length?: number | undefined
    },
  ): void {
    const { workRequestId = 0, region, offset = 0, length = 0 } = request
    this.checkLocal(slot, offset, length, region)
    this.setWorkRequestId(
      slot,
      integerInRange('a work request id', workRequestId, 0, Number.MAX_SAFE_INTEGER),
    )
    this.setLocal(slot, offset, length, region === undefined ? 0 : this.regionIndex(region))
  }
}
