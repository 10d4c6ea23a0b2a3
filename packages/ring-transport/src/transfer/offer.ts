import { type MemoryRegion, UsageError, VerbsError } from '@rdmakit/verbs'
import { interruptible } from '../base/interruptible.js'
import { RingMessage } from '../receiving/message.js'
import type { OfferFields } from './format.js'
import type { TransferHost } from './host.js'
import type { TransferMemory } from './memory.js'
import { inCallersContext, type OnProgress, tell } from './progress.js'
import { type Pull, READ_BYTES, type Reads } from './reads.js'
import { memoryOf } from './region.js'

/** How an offer is taken. */
export interface AcceptOfferOptions {
  /**
   * Where to read it to: memory of this connection ({@link RingConnection.allocate}); default memory of the
   * transport's own, within `maxTransferMemory`
   */
  readonly into?: MemoryRegion | undefined
  /** bytes from the start of `into`, default 0 */
  readonly offset?: number | undefined
  /** called with the bytes that have come, which only grow, and those of the message */
  readonly onProgress?: OnProgress | undefined
  /** gives up with its reason */
  readonly signal?: AbortSignal | undefined
}

/** How an offer is read chunk by chunk. */
export interface ChunkOptions {
  /** bytes of a chunk but the last, 4096 … half of `maxTransferMemory`, default 1 MiB */
  readonly chunkSize?: number | undefined
  /** called with the bytes that have come, which only grow, and those of the message */
  readonly onProgress?: OnProgress | undefined
  /** gives up with its reason */
  readonly signal?: AbortSignal | undefined
}

/** @internal what an offer tells of itself */
export interface OfferSink {
  /** bytes that have been read so far */
  progress(offer: RingOffer, transferred: number): void
  /** it has been read, or not, because of `failure` */
  settle(offer: RingOffer, failure: unknown): void
}

const LEAST_CHUNK = 4096

/**
 * A large message that the peer offers, still in the peer's memory. Take it with {@link accept} or
 * {@link chunks}, or {@link reject} it; until then the peer waits, as long as it has set itself.
 */
export class RingOffer {
  /** bytes of the message */
  readonly length: number
  /** the 32 bits that the sender gave with the message, without a sign; 0 when it gave none */
  readonly immediate: number
  /** @internal */
  readonly correlation: number
  /** @internal */
  readonly fields: OfferFields
  readonly #host: TransferHost
  readonly #reads: Reads
  readonly #memory: TransferMemory
  readonly #sink: OfferSink
  /** aborts when the sender withdraws, or the connection ends */
  readonly #over = new AbortController()
  #state: 'open' | 'taken' | 'settled' = 'open'
  /** whether what took it will settle it */
  #working = false
  #transferred = 0

  /** @internal */
  constructor(
    host: TransferHost,
    reads: Reads,
    memory: TransferMemory,
    sink: OfferSink,
    fields: OfferFields,
    frame: { readonly correlation: number; readonly immediate: number },
  ) {
    this.#host = host
    this.#reads = reads
    this.#memory = memory
    this.#sink = sink
    this.fields = fields
    this.length = fields.length
    this.immediate = frame.immediate
    this.correlation = frame.correlation
  }

  /** Aborts, with the reason, when the sender withdraws it or the connection ends before it is settled. */
  get signal(): AbortSignal {
    return this.#over.signal
  }

  /**
   * Reads all of it.
   * @returns the message; `release()` it, which gives back the memory unless that was `into`
   * @throws UsageError when it is taken already, `into` has not the room or is not of this connection, or there is an
   *   `offset` without it;
   *   VerbsError EMSGSIZE beyond `maxTransferMemory` without `into`, ECANCELED when the sender withdraws,
   *   ECONNRESET when the connection breaks, ENOMEM; the signal's reason. Nothing is written to `into` any
   *   more when it rejects.
   */
  async accept(options: AcceptOfferOptions = {}): Promise<RingMessage> {
    const { into, offset = 0, onProgress } = inCallersContext(options)
    if (into !== undefined) this.#check(into, offset)
    else if (offset !== 0) throw new UsageError('offset is a place in the region into, which is missing')
    this.#take()
    return await this.#settling(async () => {
      const signal = this.#signals(options.signal)
      const lease = into === undefined ? await this.#memory.acquire(this.#bounded(), signal) : undefined
      const region = into ?? (lease as NonNullable<typeof lease>).region
      try {
        const pull = this.#pull(0, this.length, region, offset, onProgress)
        await stoppable(pull, signal)
      } catch (failure) {
        lease?.release()
        throw failure
      }
      const memory = memoryOf(region)
      const source = { debug: this.#host.debug, released: () => lease?.release() }
      return new RingMessage(source, memory, offset, this.length, 0, 0, this.immediate)
    })
  }

  /**
   * Reads it chunk by chunk, through two buffers in turn: while one is worked on, the other is filled. So a
   * message of any length passes through `2 * chunkSize` bytes. A chunk is good until the next one is asked
   * for. Leaving the loop early rejects what is left. A chunk may be written to by the peer while you read it, as
   * {@link RingMessage.data}: decode, parse, check and compare a copy.
   * @throws as {@link accept}; UsageError for a `chunkSize` out of range
   */
  chunks(options: ChunkOptions = {}): AsyncGenerator<Uint8Array, void, void> {
    const { chunkSize = Math.min(READ_BYTES, Math.floor(this.#memory.limit / 2)) } = options
    const most = Math.floor(this.#memory.limit / 2)
    if (!Number.isInteger(chunkSize) || chunkSize < LEAST_CHUNK || chunkSize > most)
      throw new UsageError(
        `chunkSize must be a whole number from ${LEAST_CHUNK} to ${most}, not ${chunkSize}`,
      )
    this.#take()
    return interruptible(
      (left) => this.#chunks(chunkSize, inCallersContext(options), left),
      () => this.#settle(restRefused()),
    )
  }

  /**
   * Refuses it: the sender's `transmit` rejects with a {@link RemoteError} of the reason's `code` (EREMOTEIO
   * when it has none) and message.
   * @throws UsageError when it is taken already
   */
  reject(
    reason: Error = new VerbsError('ECANCELED', 'transmit', 'the peer', 'the receiver refused it'),
  ): void {
    this.#take()
    this.#settle(reason)
  }

  /** @internal nothing is read any more: the sender withdrew, or the connection ended */
  end(reason: unknown): void {
    this.#over.abort(reason)
    if (!this.#working) this.#settle(reason)
  }

  async *#chunks(
    chunkSize: number,
    options: ChunkOptions,
    left: AbortSignal,
  ): AsyncGenerator<Uint8Array, void, void> {
    let failure: unknown = restRefused()
    let lease: Awaited<ReturnType<TransferMemory['acquire']>> | undefined
    let pull: Pull | undefined
    try {
      this.#working = true
      const signal = this.#signals(options.signal, left)
      lease = await this.#memory.acquire(Math.min(2 * chunkSize, this.length + chunkSize), signal)
      const { region } = lease
      const lengthAt = (position: number) => Math.min(chunkSize, this.length - position)
      const fill = (position: number, half: number) =>
        this.#pull(position, lengthAt(position), region, half * chunkSize, options.onProgress)
      pull = fill(0, 0)
      for (let position = 0, half = 0; position < this.length; position += chunkSize, half ^= 1) {
        await stoppable(pull, signal)
        const next = position + chunkSize
        if (next < this.length) pull = fill(next, half ^ 1)
        // All has been read: the sender need not wait until the last chunk is worked on.
        else this.#settle(undefined)
        yield new Uint8Array(region.buffer, half * chunkSize, lengthAt(position))
      }
    } catch (reason) {
      if (!left.aborted) failure = reason
      throw reason
    } finally {
      pull?.stop(failure)
      await pull?.done.catch(() => {})
      lease?.release()
      this.#settle(failure)
    }
  }

  #pull(
    from: number,
    length: number,
    region: MemoryRegion,
    offset: number,
    onProgress: OnProgress | undefined,
  ): Pull {
    const { address, remoteKey } = this.fields
    const bytes = { address: address + BigInt(from), remoteKey, length }
    return this.#reads.pull(bytes, region, offset, (more) => {
      this.#transferred += more
      this.#sink.progress(this, this.#transferred)
      tell(onProgress, this.#transferred, this.length)
    })
  }

  async #settling<T>(work: () => Promise<T>): Promise<T> {
    this.#working = true
    try {
      const result = await work()
      this.#settle(undefined)
      return result
    } catch (failure) {
      this.#settle(failure)
      throw failure
    }
  }

  #settle(failure: unknown): void {
    if (this.#state === 'settled') return
    this.#state = 'settled'
    this.#sink.settle(this, failure)
  }

  #take(): void {
    const { signal } = this.#over
    if (signal.aborted) throw signal.reason
    if (this.#state !== 'open') throw new UsageError('this offer has been taken or refused already')
    this.#state = 'taken'
  }

  #check(into: MemoryRegion, offset: number): void {
    if (into.closed) throw new UsageError(`${into.description} is closed`)
    if (into.protectionDomain !== this.#host.protectionDomain)
      throw new UsageError('the region does not belong to this connection: use its allocate()')
    if (!Number.isSafeInteger(offset) || offset < 0 || offset + this.length > into.length)
      throw new UsageError(`${this.length} bytes do not fit into ${into.length} from ${offset} on`)
    memoryOf(into)
  }

  #bounded(): number {
    if (this.length <= this.#memory.limit) return this.length
    throw new VerbsError(
      'EMSGSIZE',
      'accept',
      this.#host.object,
      `the message is ${this.length} bytes, maxTransferMemory ${this.#memory.limit}`,
    )
  }

  #signals(...signals: (AbortSignal | undefined)[]): AbortSignal {
    return AbortSignal.any([this.#over.signal, ...signals.filter((one) => one !== undefined)])
  }
}

/** Why a sender's message ends whose chunks are left. */
function restRefused(): VerbsError {
  return new VerbsError('ECANCELED', 'transmit', 'the peer', 'the receiver refused the rest')
}

/** Waits for a pull; when `signal` aborts, until nothing of it is under way any more. */
async function stoppable(pull: Pull, signal: AbortSignal): Promise<void> {
  const stop = () => pull.stop(signal.reason)
  if (signal.aborted) stop()
  signal.addEventListener('abort', stop, { once: true })
  try {
    await pull.done
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
