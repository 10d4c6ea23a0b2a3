import { types } from 'node:util'
import { UsageError, VerbsError } from '@rdmakit/verbs'
import { type Deferred, deferred, mayChange, onAbort } from '@rdmakit/verbs/internal'
import { isPromise } from '../base/is-promise.js'
import { SEND, TYPE } from '../native.js'
import type { Flushable } from '../polling/poller-client.js'
import { HEADER, type StagingWriter } from './staging-writer.js'
import { type FrameFields, WaitingFrames } from './waiting-frames.js'

/** The link, as an outbox uses it. */
export interface SendingLink {
  readonly id: { readonly description: string }
  readonly stagingWriter: StagingWriter
  /** bytes of the longest frame */
  readonly maxMessageLength: number
  /** bytes of the longest message, in parts where it is more */
  readonly longestMessage: number
  readonly poller: { scheduleFlush(outbox: Flushable): void }
  /** Whether all that was sent has completed; if not, a writable event follows. */
  drained(): boolean
}

/**
 * Bytes of a part: one is sent while the one before it is taken. Over iwarp on one host it goes in two segments of 48 KiB,
 * each still in the nearest caches when it is sent after it has been summed; shorter ones cost more system calls than that
 * saves.
 */
const PART = 98_304 - HEADER

/**
 * The outgoing frames of a connection: batches them by turns of the event loop, and keeps those that
 * must go but find no room, in order.
 */
export class Outbox {
  readonly #link: SendingLink
  readonly #writer: StagingWriter
  /** bytes of the shortest payload that is not copied */
  readonly #leastLent: number
  /** bytes of the longest frame */
  readonly #most: number
  /** … of the longest message, in parts where it is more */
  readonly #longest: number
  readonly #failed: () => VerbsError
  readonly #waiting: WaitingFrames
  /** those who wait for room */
  readonly #writers = new Set<Deferred<void>>()
  #progress: (() => void) | undefined
  /** bytes that the application has claimed, while it fills them, else −1 */
  claimed = -1
  #full = false
  #flushScheduled = false
  /** @internal in the poller's list of those to flush */
  isListed = false
  #reason: VerbsError | undefined
  /** messages and bytes that were taken, of all types */
  frames = 0
  bytes = 0
  /** times that a frame found no room */
  refused = 0

  /** @param failed called when the queue pair accepts no more work requests; its result is thrown */
  constructor(link: SendingLink, failed: () => VerbsError) {
    this.#link = link
    this.#writer = link.stagingWriter
    this.#leastLent = link.stagingWriter.leastLent
    this.#most = link.maxMessageLength
    this.#longest = link.longestMessage
    this.#failed = failed
    this.#waiting = new WaitingFrames(
      {
        part: Math.min(PART, this.#most),
        isFrame: (bytes) => this.isFrame(bytes),
        requireFits: (bytes) => this.requireFits(bytes),
        lay: (type, correlation, immediate, bytes) => this.#lay(type, correlation, immediate, bytes),
      },
      () => {
        if (this.#reason === undefined && this.claimed < 0) this.#resume()
      },
    )
  }

  // --- hot path: nothing is allocated, and no call leaves JavaScript but for each batch ---

  /** Sends if there is room and nothing waits. @throws VerbsError EMSGSIZE, ECONNRESET */
  send(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean {
    requireBytes(bytes)
    const length = bytes.length
    const at = this.#place(type, length)
    if (at < 0) return false
    this.#put(type, correlation, immediate, bytes, at)
    return true
  }

  /** @throws TypeError, VerbsError EMSGSIZE: it could never be sent */
  requireFits(bytes: Uint8Array): void {
    requireBytes(bytes)
    if (bytes.length > this.#longest) throw this.#tooLong(bytes.length)
  }

  /** Whether they fit into one frame. */
  isFrame(bytes: Uint8Array): boolean {
    return bytes.length <= this.#most
  }

  /** Room for a message of `length` bytes: its offset in the staging region, −1 when there is none. */
  claim(length: number): number {
    if (this.claimed >= 0 || length !== length >>> 0) this.#refuseClaim(length)
    const at = this.#waiting.count > 0 ? this.#refuse() : this.#tryPlace(TYPE.data, length)
    if (at >= 0) this.claimed = length
    return at
  }

  /** Sends the message that was claimed, or its first `length` bytes. */
  commit(length: number, immediate: number): void {
    if (!(length <= this.claimed) || length !== length >>> 0) throw this.#wrongCommit(length)
    this.claimed = -1
    this.#commit(TYPE.data, length, 0, immediate)
    if (this.#waiting.count > 0 || this.#full) this.#afterClaim()
  }

  /** Room for a frame: its offset in the staging region, −1 when there is none. */
  #place(type: number, length: number): number {
    // Waiting frames go first; their turn ends with a writable event of its own, or with the claim.
    if (this.#waiting.count > 0 || this.claimed >= 0) return this.#refuse()
    return this.#tryPlace(type, length)
  }

  #tryPlace(type: number, length: number): number {
    const at = length > this.#most ? -SEND.tooLong : this.#writer.place(type, length)
    return at > 0 ? at : this.#refuseFor(-at, length)
  }

  #commit(type: number, length: number, correlation: number, immediate: number): void {
    this.#committed(this.#writer.commit(type, length, correlation, immediate), length)
  }

  /** A long payload, which fills a batch by itself, leaves from where it is, unless that may change meanwhile. */
  #put(type: number, correlation: number, immediate: number, bytes: Uint8Array, at: number): void {
    const { length } = bytes
    if (length >= this.#leastLent && !mayChange(bytes.buffer))
      this.#committed(this.#writer.commitLent(type, bytes, correlation, immediate, at), length)
    else {
      this.#writer.bytes.set(bytes, at)
      this.#commit(type, length, correlation, immediate)
    }
  }

  #committed(result: number, length: number): void {
    this.frames++
    this.bytes += length
    if (result !== SEND.done) this.#require(result)
    if (!this.#flushScheduled) this.#schedule()
  }
  // --- end of the hot path ---

  #require(result: number): void {
    if (result !== SEND.full) throw this.#failed()
  }

  #schedule(): void {
    this.#flushScheduled = true
    this.#link.poller.scheduleFlush(this)
  }

  /** @throws UsageError, unless the length is only too long for any frame */
  #refuseClaim(length: number): void {
    if (length !== length >>> 0 && !(length > 0xffff_ffff))
      throw new UsageError(`the length of a message must be a whole number of bytes from 0, not ${length}`)
    if (this.claimed >= 0) throw new UsageError('a claim is open; commit() or abort() it first')
  }

  #wrongCommit(length: number): UsageError {
    return new UsageError(
      this.claimed < 0
        ? 'nothing is claimed'
        : `${this.claimed} bytes are claimed, fewer than the ${length} to send`,
    )
  }

  /** Gives up the claim. */
  abort(): void {
    if (this.claimed < 0) throw new UsageError('nothing is claimed')
    this.claimed = -1
    if (this.#waiting.count > 0 || this.#full) this.#afterClaim()
  }

  /**
   * Sends, waiting for room as long as `wanted`. Undefined when it is done already.
   * @param bytes are copied when they have to wait, so that they may change once this returns. A promise of them has its
   *   place among all frames now, and those behind it wait; as it rejects, this does
   * @param onSent called when the frame has its place among those that leave, before any answer can come
   */
  post(
    { type, correlation = 0, immediate = 0 }: FrameFields,
    bytes: Uint8Array | Promise<Uint8Array>,
    wanted: () => boolean = () => true,
    onSent: () => void = () => {},
  ): Promise<void> | undefined {
    if (this.#reason !== undefined) return undefined
    try {
      if (!isPromise(bytes) && this.sendWhole(type, correlation, immediate, bytes)) {
        onSent()
        return undefined
      }
    } catch (failure) {
      return Promise.reject(failure)
    }
    return this.wait({ type, correlation, immediate }, bytes, wanted, onSent)
  }

  /** {@link post} of bytes that do not change while they are wanted: waiting bytes are not copied. */
  borrow(fields: FrameFields, bytes: Uint8Array, wanted: () => boolean): Promise<void> | undefined {
    if (this.#reason !== undefined) return undefined
    const { type, correlation = 0, immediate = 0 } = fields
    try {
      if (this.sendWhole(type, correlation, immediate, bytes)) return undefined
    } catch (failure) {
      return Promise.reject(failure)
    }
    return this.#waiting.borrow(fields, bytes, wanted)
  }

  /** {@link send}; false also where they are longer than a frame. */
  sendWhole(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean {
    requireBytes(bytes)
    return this.isFrame(bytes) && this.send(type, correlation, immediate, bytes)
  }

  /** {@link post} of a frame that has found no room, or of a message longer than a frame. */
  wait(...frame: Parameters<WaitingFrames['wait']>): Promise<void> {
    return this.#waiting.wait(...frame)
  }

  /** Sends the last frame: from it on, all tells when it has left, for {@link drained}. */
  postLast(type: number, bytes: Uint8Array): Promise<void> | undefined {
    this.#writer.signalAll()
    return this.post({ type }, bytes)
  }

  /**
   * Resolves when there is room for the refused frame; at once if none was refused.
   * @throws the error that ended the connection; the signal's reason
   */
  async writable(signal?: AbortSignal): Promise<void> {
    if (this.#reason !== undefined) throw this.#reason
    if (!this.#full) return
    const waiter = deferred<void>()
    this.#writers.add(waiter)
    const stop = onAbort(signal, () => waiter.reject(signal?.reason))
    try {
      await waiter.promise
    } finally {
      this.#writers.delete(waiter)
      stop()
    }
  }

  get hasEnded(): boolean {
    return this.#reason !== undefined
  }

  flush(): void {
    this.#flushScheduled = false
    // When the queue is full, a writable event follows.
    if (this.#reason === undefined && this.#writer.flush() === SEND.failed) this.#failed()
  }

  /** Posts what waits for the end of the turn. */
  flushScheduled(): void {
    if (this.#flushScheduled) this.flush()
  }

  /** A writable event. @param room the frame that was refused fits now */
  onWritable(room: boolean): void {
    if (this.#reason !== undefined) return
    this.flush()
    this.#progress?.()
    if (room && this.claimed < 0) this.#resume()
  }

  /** Resolves when a close frame and all before it have completed, or the connection has ended. */
  async drained(): Promise<void> {
    this.flush()
    while (this.#reason === undefined && !this.#link.drained())
      await new Promise<void>((resolve) => {
        this.#progress = resolve
      })
  }

  /** The connection has ended. */
  end(reason: VerbsError): void {
    this.#reason = reason
    this.#waiting.end(reason)
    for (const writer of this.#writers) writer.reject(reason)
    this.#progress?.()
  }

  #refuse(): number {
    this.#full = true
    this.refused++
    return -1
  }

  /** @param code one of {@link SEND} */
  #refuseFor(code: number, length: number): number {
    if (code === SEND.full) return this.#refuse()
    throw this.#refusal(code, length)
  }

  /** Sends the frames that the claim held up; if there is no room for them, a writable event follows. */
  #afterClaim(): void {
    if (this.#reason === undefined) this.#resume()
  }

  #resume(): void {
    if (!this.#waiting.send()) return
    this.#full = false
    for (const { resolve } of this.#writers) resolve()
  }

  /** False when there is no room. */
  #lay(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean {
    const at = this.#tryPlace(type, bytes.length)
    if (at < 0) return false
    this.#put(type, correlation, immediate, bytes, at)
    return true
  }

  #tooLong(length: number): VerbsError {
    if (this.#longest === this.#most) return this.#refusal(SEND.tooLong, length)
    const detail = `${length} bytes are more than ${this.#longest}, the receiver's limit: raise its option maxMessageSize`
    return new VerbsError('EMSGSIZE', 'send', this.#link.id.description, detail)
  }

  #refusal(code: number, length: number): VerbsError {
    if (code === SEND.tooLong)
      return new VerbsError(
        'EMSGSIZE',
        'send',
        this.#link.id.description,
        `${length} bytes are more than ${this.#most}, half the receiver's ring less ${HEADER}: ` +
          `raise its option capacity, now ${2 * (this.#most + HEADER)}, or use transmit()`,
      )
    return this.#failed()
  }
}

function requireBytes(bytes: Uint8Array): void {
  if (!types.isUint8Array(bytes)) throw noBytes()
}

function noBytes(): TypeError {
  return new TypeError('a message is a Uint8Array')
}
