import { types } from 'node:util'
import { UsageError, VerbsError } from '@rdmakit/verbs'
import { type Deferred, deferred, onAbort } from '@rdmakit/verbs/internal'
import { isPromise } from '../base/is-promise.js'
import { SEND, TYPE } from '../native.js'
import type { Link } from '../setup/link.js'
import { HEADER, type Lane } from './staging-writer.js'

/** A frame that waits for room, or for its bytes. */
interface Waiting {
  readonly type: number
  readonly correlation: number
  readonly immediate: number
  /** those that have not been laid out yet; undefined: those behind it wait for them, too */
  bytes: Uint8Array | undefined
  /** how many it had when it began to wait: they may be lent, and taken away */
  readonly length: number | undefined
  /** bytes of the whole message of which parts have been laid out, else 0 */
  begun: number
  /** why it will never have any */
  failure?: unknown
  /** whether it is still to be sent when its turn comes */
  readonly wanted: () => boolean
  readonly onSent: () => void
  readonly resolve: () => void
  readonly reject: (reason: unknown) => void
}

/** Bytes of a part: one is laid out while the one before it travels, and the one before that is taken. */
const PART = 131_072 - HEADER

/** Waiting frames from which on it is looked whether they are still wanted. */
const LEAST_PRUNED = 64

/** What a frame carries beside its bytes. */
export interface FrameFields {
  readonly type: number
  readonly correlation?: number
  readonly immediate?: number
}

/**
 * The outgoing frames of a connection: batches them by turns of the event loop, and keeps those that
 * must go but find no room, in order.
 */
export class Outbox {
  readonly #link: Link
  readonly #lane: Lane
  /** bytes of the longest frame */
  readonly #most: number
  /** … of the longest message, in parts where it is more */
  readonly #longest: number
  readonly #part: number
  readonly #failed: () => VerbsError
  #waiting: Waiting[] = []
  /** those who wait for room */
  readonly #writers = new Set<Deferred<void>>()
  #progress: (() => void) | undefined
  /** bytes that the application has claimed, while it fills them, else −1 */
  claimed = -1
  #full = false
  #pruneAt = LEAST_PRUNED
  #flushScheduled = false
  /** @internal in the poller's list of those to flush */
  isListed = false
  #reason: VerbsError | undefined
  /** messages and bytes that were taken, of all types */
  frames = 0
  bytes = 0
  /** times that a frame found no room */
  refused = 0

  /** @param failed called when the queue pair takes no more; what it returns is thrown */
  constructor(link: Link, failed: () => VerbsError) {
    this.#link = link
    this.#lane = link.lane
    this.#most = link.maxMessageLength
    this.#longest = link.longestMessage
    this.#part = Math.min(PART, this.#most)
    this.#failed = failed
  }

  // --- hot path: nothing is allocated, and no call leaves JavaScript but for each batch ---

  /** Sends if there is room and nothing waits. @throws VerbsError EMSGSIZE, ECONNRESET */
  send(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean {
    requireBytes(bytes)
    const length = bytes.length
    if (!this.#place(type, length)) return false
    this.#lane.bytes.set(bytes, this.#at)
    this.#commit(type, length, correlation, immediate)
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

  /** Room for a message of `length` bytes: its offset in the lane, −1 when there is none. */
  claim(length: number): number {
    if (length !== length >>> 0 && !(length > 0xffff_ffff))
      throw new UsageError(`a message is of a whole number of bytes from 0, not ${length}`)
    if (this.claimed >= 0) throw new UsageError('there is a claim already; commit() or abort() it first')
    if (!this.#place(TYPE.data, length)) return -1
    this.claimed = length
    return this.#at
  }

  /** Sends the message that was claimed, or its first `length` bytes. */
  commit(length: number, immediate: number): void {
    const claimed = this.claimed
    if (claimed < 0) throw new UsageError('nothing is claimed')
    if (length > claimed || length < 0 || length !== length >>> 0)
      throw new UsageError(`${claimed} bytes are claimed, ${length} cannot be sent of them`)
    this.claimed = -1
    if (length < claimed) this.#lane.shorten(TYPE.data, length)
    this.#commit(TYPE.data, length, 0, immediate)
    if (this.#waiting.length > 0 || this.#full) this.#afterClaim()
  }

  #at = 0

  #place(type: number, length: number): boolean {
    // What waits goes first; its turn ends with a writable event of its own, or with the claim.
    if (this.#waiting.length > 0 || this.claimed >= 0) {
      this.#refuse()
      return false
    }
    return this.#tryPlace(type, length)
  }

  #tryPlace(type: number, length: number): boolean {
    if (length > this.#most) throw this.#refusal(SEND.tooLong, length)
    const at = this.#lane.place(type, length)
    if (at > 0) {
      this.#at = at
      return true
    }
    if (at === -SEND.full) {
      this.#refuse()
      return false
    }
    throw this.#refusal(-at, length)
  }

  #commit(type: number, length: number, correlation: number, immediate: number): void {
    const result = this.#lane.commit(type, length, correlation, immediate)
    this.frames++
    this.bytes += length
    if (result !== SEND.done && result !== SEND.full) throw this.#failed()
    if (!this.#flushScheduled) {
      this.#flushScheduled = true
      this.#link.poller.scheduleFlush(this)
    }
  }
  // --- end of the hot path ---

  /** Gives up what was claimed. */
  abort(): void {
    if (this.claimed < 0) throw new UsageError('nothing is claimed')
    this.claimed = -1
    if (this.#waiting.length > 0 || this.#full) this.#afterClaim()
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
      if (!isPromise(bytes) && this.#sendsWhole(type, correlation, immediate, bytes)) {
        onSent()
        return undefined
      }
    } catch (failure) {
      return Promise.reject(failure)
    }
    return this.wait({ type, correlation, immediate }, bytes, wanted, onSent)
  }

  /** {@link post} of bytes that stay as they are as long as they are wanted: what has to wait is not copied. */
  lend(fields: FrameFields, bytes: Uint8Array, wanted: () => boolean): Promise<void> | undefined {
    if (this.#reason !== undefined) return undefined
    const { type, correlation = 0, immediate = 0 } = fields
    try {
      if (this.#sendsWhole(type, correlation, immediate, bytes)) return undefined
    } catch (failure) {
      return Promise.reject(failure)
    }
    return this.#enter(fields, bytes, wanted, () => {}).promise
  }

  #sendsWhole(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean {
    requireBytes(bytes)
    return this.isFrame(bytes) && this.send(type, correlation, immediate, bytes)
  }

  /** {@link post} of what has found no room, or is longer than a frame. */
  wait(
    fields: FrameFields,
    bytes: Uint8Array | Promise<Uint8Array>,
    wanted: () => boolean,
    onSent: () => void,
  ): Promise<void> {
    const late = isPromise(bytes)
    const { frame, promise } = this.#enter(fields, late ? undefined : bytes, wanted, onSent)
    if (late) void this.#complete(frame, bytes)
    // The parts that are on their way by now need no copy.
    else frame.bytes = frame.bytes?.slice()
    return promise
  }

  /** Gives a frame its place behind those that wait. One that is longer than a frame may find room for parts now. */
  #enter(
    { type, correlation = 0, immediate = 0 }: FrameFields,
    bytes: Uint8Array | undefined,
    wanted: () => boolean,
    onSent: () => void,
  ): { readonly frame: Waiting; readonly promise: Promise<void> } {
    if (this.#waiting.length >= this.#pruneAt) this.#prune()
    const { promise, resolve, reject } = deferred<void>()
    const length = bytes?.length
    const frame: Waiting = {
      ...{ type, correlation, immediate, bytes, length, begun: 0 },
      ...{ wanted, onSent, resolve, reject },
    }
    this.#waiting.push(frame)
    if (bytes !== undefined && this.#waiting.length === 1 && this.claimed < 0 && !this.isFrame(bytes))
      this.#resume()
    return { frame, promise }
  }

  /** Fills in bytes that were not known when their frame got its place. */
  async #complete(frame: Waiting, bytes: Promise<Uint8Array>): Promise<void> {
    try {
      frame.bytes = await bytes
    } catch (failure) {
      frame.failure = failure
    }
    if (this.#reason === undefined && this.claimed < 0) this.#resume()
  }

  /** Lets go of frames that nobody wants sent any more, such as requests that timed out meanwhile. */
  #prune(): void {
    const kept: Waiting[] = []
    for (const frame of this.#waiting) {
      if (frame.begun > 0 || frame.wanted()) kept.push(frame)
      else frame.resolve()
    }
    this.#waiting = kept
    this.#pruneAt = Math.max(LEAST_PRUNED, 2 * kept.length)
  }

  /** Sends the last frame: from it on, all tells when it has left, for {@link drained}. */
  postLast(type: number, bytes: Uint8Array): Promise<void> | undefined {
    this.#lane.signalAll()
    return this.post({ type }, bytes)
  }

  /**
   * Resolves when there is room for what was refused; at once when nothing was.
   * @throws what ended the connection; the signal's reason
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
    if (this.#reason === undefined && this.#lane.flush() === SEND.failed) this.#failed()
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
    for (const { reject } of this.#waiting.splice(0)) reject(reason)
    for (const writer of this.#writers) writer.reject(reason)
    this.#progress?.()
  }

  #refuse(): void {
    this.#full = true
    this.refused++
  }

  /** What the claim held up goes now; if there is no room for it, a writable event follows. */
  #afterClaim(): void {
    if (this.#reason === undefined) this.#resume()
  }

  #resume(): void {
    if (!this.#sendWaiting()) return
    this.#full = false
    for (const { resolve } of this.#writers) resolve()
  }

  /** False when the first of them found no room again, or has no bytes yet. */
  #sendWaiting(): boolean {
    let done = 0
    try {
      for (const frame of this.#waiting) {
        const { bytes, wanted, onSent, resolve, reject } = frame
        try {
          if (frame.failure !== undefined) throw frame.failure
          if (wanted()) {
            if (bytes === undefined) return false
            if (frame.begun === 0 && bytes.length !== (frame.length ?? bytes.length)) throw takenAway()
            if (
              !(frame.begun > 0 || !this.isFrame(bytes)
                ? this.#layParts(frame, bytes)
                : this.#lay(frame, bytes))
            )
              return false
            onSent()
          } else if (frame.begun > 0 && !this.#giveUp()) return false
          resolve()
        } catch (failure) {
          reject(failure)
        }
        done++
      }
      return true
    } finally {
      this.#waiting.splice(0, done)
    }
  }

  /** False when there is no room. */
  #lay({ type, correlation = 0, immediate = 0 }: FrameFields, bytes: Uint8Array): boolean {
    if (!this.#tryPlace(type, bytes.length)) return false
    this.#lane.bytes.set(bytes, this.#at)
    this.#commit(type, bytes.length, correlation, immediate)
    return true
  }

  /** The parts that there is room for; see receiving/assembly.ts. False when the last is not among them. */
  #layParts(frame: Waiting, bytes: Uint8Array): boolean {
    if (frame.begun === 0) {
      this.requireFits(bytes)
      frame.begun = bytes.length
    } else if (bytes.length === 0) {
      if (!this.#giveUp()) return false
      throw takenAway()
    }
    let rest = bytes
    for (; rest.length > this.#part; rest = rest.subarray(this.#part)) {
      frame.bytes = rest
      if (!this.#tryPlace(TYPE.part, this.#part)) return false
      this.#lane.bytes.set(rest.subarray(0, this.#part), this.#at)
      this.#commit(TYPE.part, this.#part, frame.begun, frame.type)
    }
    frame.bytes = rest
    if (!this.#lay({ ...frame, type: TYPE.last }, rest)) return false
    frame.bytes = undefined
    return true
  }

  /** Tells the peer that the rest of a message does not come. False when there is no room. */
  #giveUp(): boolean {
    if (!this.#tryPlace(TYPE.last, 0)) return false
    this.#commit(TYPE.last, 0, 0, 0)
    return true
  }

  #tooLong(length: number): VerbsError {
    if (this.#longest === this.#most) return this.#refusal(SEND.tooLong, length)
    const detail = `${length} bytes are more than ${this.#longest}, which the end that gets them takes: raise its option maxMessageSize`
    return new VerbsError('EMSGSIZE', 'send', this.#link.id.description, detail)
  }

  #refusal(code: number, length: number): VerbsError {
    if (code === SEND.tooLong)
      return new VerbsError(
        'EMSGSIZE',
        'send',
        this.#link.id.description,
        `${length} bytes are more than ${this.#most}, half the ring of the end that gets them less ${HEADER}: ` +
          `raise its option capacity, now ${2 * (this.#most + HEADER)}, or use transmit()`,
      )
    return this.#failed()
  }
}

function takenAway(): UsageError {
  return new UsageError('the bytes of a message were taken away before all of them were sent')
}

function requireBytes(bytes: Uint8Array): void {
  if (!types.isUint8Array(bytes)) throw new TypeError('a message is a Uint8Array')
}
