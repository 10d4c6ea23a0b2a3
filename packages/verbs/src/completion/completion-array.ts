import { UsageError, VerbsError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import { type NativeCompletionArray, native } from '../native.js'
import type { CompletionQueue } from './completion-queue.js'
import { type CompletionStatus, STATUSES } from './work-completion.js'

const WORDS = 16
const HIGH = 2 ** 32

/**
 * Where `poll` puts completions without allocating (ibv_poll_cq(3)): entry `i` of the last poll is read with
 * the methods below. An entry has 64 bytes: u64 workRequestId, u32 status (`enum ibv_wc_status`, 0 is
 * success), u32 opcode (`enum ibv_wc_opcode`), u32 byteLength, u32 immediate (or the invalidated key), u32
 * flags (`enum ibv_wc_flags`), u32 queuePairNumber, u32 vendorError, u32 sourceQueuePairNumber, u64
 * timestamp, 16 reserved.
 */
export class CompletionArray extends Resource {
  /** bytes of an entry */
  static readonly BYTES = 64
  /** maximum number of completions per poll, 1…256 */
  readonly capacity: number
  /** the entries themselves, little-endian records of native memory */
  readonly buffer: ArrayBuffer
  readonly #words: Uint32Array
  readonly #queue: string
  readonly #poll: NativeCompletionArray['poll']

  /** @internal made by {@link CompletionQueue.createCompletionArray} */
  constructor(queue: CompletionQueue, capacity: number) {
    if (!Number.isInteger(capacity) || capacity < 1 || capacity > 256)
      throw new UsageError(`a completion array has 1 to 256 entries, not ${capacity}`)
    const made = native.createCompletionArray(queue.handle, capacity)
    super(made.handle, [queue])
    this.capacity = capacity
    this.buffer = made.buffer
    this.#words = new Uint32Array(made.buffer)
    this.#queue = queue.description
    this.#poll = made.poll
  }

  get description(): string {
    return `completion array of ${this.#queue}`
  }

  /**
   * Polls up to `max` completions.
   * @returns how many; they are entries 0 … n - 1 until the next poll
   * @throws VerbsError EIO: the queue is broken, most likely overrun
   */
  poll(max: number = this.capacity): number {
    if (this.closed) throw new UsageError(`${this.description} is closed`)
    const count = this.#poll(max)
    if (count < 0)
      throw new VerbsError('EIO', 'ibv_poll_cq', this.#queue, 'the queue is broken, most likely overrun')
    return count
  }

  /** The request's `workRequestId`, exact up to 2^53. */
  workRequestId(i: number): number {
    return this.#word(i, 0) + this.#word(i, 1) * HIGH
  }

  /** Whether the request succeeded. */
  succeeded(i: number): boolean {
    return this.#word(i, 2) === 0
  }

  /** How the request ended. */
  status(i: number): CompletionStatus {
    return STATUSES[this.#word(i, 2)] ?? 'general-error'
  }

  /** `enum ibv_wc_opcode` */
  opcode(i: number): number {
    return this.#word(i, 3)
  }

  /** bytes received or read */
  byteLength(i: number): number {
    return this.#word(i, 4)
  }

  /** 32 bits in host byte order, or the key that was invalidated; 0 when the message carried none */
  immediate(i: number): number {
    return this.#word(i, 5)
  }

  /** `enum ibv_wc_flags` */
  flags(i: number): number {
    return this.#word(i, 6)
  }

  /** The queue pair of this side that the request was on. */
  queuePairNumber(i: number): number {
    return this.#word(i, 7)
  }

  /** as {@link WorkCompletion.timestamp}, exact up to 2^53; 0 without timestamps */
  timestamp(i: number): number {
    return this.#word(i, 10) + this.#word(i, 11) * HIGH
  }

  #word(i: number, word: number): number {
    return this.#words[i * WORDS + word] as number
  }
}
