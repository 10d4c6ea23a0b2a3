import { UsageError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { isPromise } from '../base/is-promise.js'
import { TYPE } from '../native.js'
import { WaitingMemory } from './waiting-memory.js'

/** The fields of a frame besides its bytes. */
export interface FrameFields {
  readonly type: number
  readonly correlation?: number
  readonly immediate?: number
}

/** How waiting frames are laid out once there is room. */
export interface FrameLayout {
  /** bytes of a part */
  readonly part: number
  /** Whether they fit into one frame. */
  isFrame(bytes: Uint8Array): boolean
  /** @throws VerbsError EMSGSIZE: it could never be sent */
  requireFits(bytes: Uint8Array): void
  /** False when there is no room. @throws VerbsError */
  lay(type: number, correlation: number, immediate: number, bytes: Uint8Array): boolean
}

/** A frame that waits for room, or for its bytes. */
class Waiting {
  readonly type: number
  readonly correlation: number
  readonly immediate: number
  /** those that have not been laid out yet; undefined: those behind it wait for them, too */
  bytes: Uint8Array | undefined
  /** how many it had when it began to wait: they may be lent, and taken away */
  readonly length: number | undefined
  /** what they were copied to, if that may serve again */
  memory: Uint8Array | undefined
  /** bytes of a copy that is its own */
  copied = 0
  /** bytes of the whole message of which parts have been laid out, else 0 */
  begun = 0
  /** why it will never have any */
  failure: unknown
  /** whether it is still to be sent when its turn comes */
  readonly wanted: () => boolean
  readonly onSent: () => void
  readonly left = deferred<void>()

  constructor(
    { type, correlation = 0, immediate = 0 }: FrameFields,
    bytes: Uint8Array | undefined,
    wanted: () => boolean,
    onSent: () => void,
  ) {
    this.type = type
    this.correlation = correlation
    this.immediate = immediate
    this.bytes = bytes
    this.length = bytes?.length
    this.wanted = wanted
    this.onSent = onSent
  }
}

/** Waiting frames, and bytes of copies, from which on it is looked whether they are still wanted. */
const LEAST_PRUNED = 64
const LEAST_BYTES_PRUNED = 4 * 2 ** 20
const NONE = new Uint8Array()
/** Of all connections: what one has sent serves the next. */
const waitingMemory = new WaitingMemory()

/**
 * Frames that must be sent but find no room, in order. A message longer than a frame goes in parts, as room permits.
 */
export class WaitingFrames {
  readonly #layout: FrameLayout
  readonly #ready: () => void
  #frames: Waiting[] = []
  #pruneAt = LEAST_PRUNED
  /** bytes of the copies of those that wait */
  #copied = 0
  #pruneAtBytes = LEAST_BYTES_PRUNED
  #sending = false

  /** @param ready called when {@link send} may find more to do, though there is no more room than before */
  constructor(layout: FrameLayout, ready: () => void) {
    this.#layout = layout
    this.#ready = ready
  }

  get count(): number {
    return this.#frames.length
  }

  /**
   * Gives a frame its place behind those that wait.
   * @param bytes are copied, so that they may change once this returns, or a promise of them
   */
  wait(
    fields: FrameFields,
    bytes: Uint8Array | Promise<Uint8Array>,
    wanted: () => boolean,
    onSent: () => void,
  ): Promise<void> {
    const late = isPromise(bytes)
    const frame = this.#enter(fields, late ? undefined : bytes, wanted, onSent)
    if (late) void this.#complete(frame, bytes)
    else this.#keep(frame)
    return frame.left.promise
  }

  /** {@link wait} of bytes that stay as they are as long as they are wanted: they are not copied. */
  borrow(fields: FrameFields, bytes: Uint8Array, wanted: () => boolean): Promise<void> {
    return this.#enter(fields, bytes, wanted, () => {}).left.promise
  }

  /** Sends what there is room for. False when the first of them found no room again, or has no bytes yet. */
  send(): boolean {
    let done = 0
    this.#sending = true
    try {
      for (const frame of this.#frames) {
        try {
          if (!this.#sendOne(frame)) return false
          frame.left.resolve()
          this.#reuse(frame)
        } catch (failure) {
          this.#copied -= frame.copied
          frame.left.reject(failure)
        }
        done++
      }
      return true
    } finally {
      this.#sending = false
      this.#frames.splice(0, done)
    }
  }

  /** The connection has ended. */
  end(reason: unknown): void {
    for (const { left } of this.#frames.splice(0)) left.reject(reason)
    this.#copied = 0
  }

  /** False when it must wait on. */
  #sendOne(frame: Waiting): boolean {
    const { bytes } = frame
    if (frame.failure !== undefined) throw frame.failure
    if (!frame.wanted()) return frame.begun === 0 || this.#giveUp()
    if (bytes === undefined) return false
    if (frame.begun === 0 && bytes.length !== (frame.length ?? bytes.length)) throw takenAway()
    const laid =
      frame.begun > 0 || !this.#layout.isFrame(bytes)
        ? this.#layParts(frame, bytes)
        : this.#layout.lay(frame.type, frame.correlation, frame.immediate, bytes)
    if (laid) frame.onSent()
    return laid
  }

  /** The parts that there is room for; see receiving/assembly.ts. False when the last is not among them. */
  #layParts(frame: Waiting, bytes: Uint8Array): boolean {
    const { part } = this.#layout
    if (frame.begun === 0) this.#layout.requireFits(bytes)
    else if (bytes.length === 0) {
      if (!this.#giveUp()) return false
      throw takenAway()
    }
    const whole = frame.begun || bytes.length
    let rest = bytes
    for (; rest.length > part; rest = rest.subarray(part)) {
      frame.bytes = rest
      if (!this.#layout.lay(TYPE.part, whole, frame.type, rest.subarray(0, part))) return false
      // Not before: of a message without a beginning the peer must not hear the end.
      frame.begun = whole
    }
    frame.bytes = rest
    if (!this.#layout.lay(TYPE.last, frame.correlation, frame.immediate, rest)) return false
    frame.bytes = undefined
    return true
  }

  /** Tells the peer that the rest of a message does not come. False when there is no room. */
  #giveUp(): boolean {
    return this.#layout.lay(TYPE.last, 0, 0, NONE)
  }

  /** One that is longer than a frame may find room for parts now. */
  #enter(
    fields: FrameFields,
    bytes: Uint8Array | undefined,
    wanted: () => boolean,
    onSent: () => void,
  ): Waiting {
    // Not while `send` walks over them: `onSent` of one may bring the next.
    const many = this.#frames.length >= this.#pruneAt || this.#copied >= this.#pruneAtBytes
    if (many && !this.#sending) this.#prune()
    const frame = new Waiting(fields, bytes, wanted, onSent)
    this.#frames.push(frame)
    if (bytes !== undefined && this.#frames.length === 1 && !this.#layout.isFrame(bytes)) this.#ready()
    return frame
  }

  /** The parts that are on their way by now need no copy. What cannot be copied, as it was detached, fails in its turn. */
  #keep(frame: Waiting): void {
    if (frame.bytes === undefined) return
    try {
      const { copy, memory } = waitingMemory.copy(frame.bytes)
      frame.bytes = copy
      frame.memory = memory
      frame.copied = copy.length
      this.#copied += copy.length
    } catch (failure) {
      if (frame.begun === 0) frame.failure = failure
      frame.bytes = NONE
    }
  }

  /** The frame has left or is not wanted: laid out, its bytes are in the ring, or the staging region. */
  #reuse(frame: Waiting): void {
    const { copied, memory } = frame
    this.#copied -= copied
    if (memory === undefined) return
    frame.bytes = undefined
    frame.memory = undefined
    waitingMemory.giveBack(memory)
  }

  /** Fills in bytes that were not known when their frame got its place. */
  async #complete(frame: Waiting, bytes: Promise<Uint8Array>): Promise<void> {
    try {
      frame.bytes = await bytes
    } catch (failure) {
      frame.failure = failure
    }
    this.#ready()
  }

  /** Drops frames that are not wanted any more, such as requests that timed out meanwhile. */
  #prune(): void {
    const kept: Waiting[] = []
    for (const frame of this.#frames) {
      if (frame.begun > 0 || frame.wanted()) kept.push(frame)
      else {
        frame.left.resolve()
        this.#reuse(frame)
      }
    }
    this.#frames = kept
    this.#pruneAt = Math.max(LEAST_PRUNED, 2 * kept.length)
    this.#pruneAtBytes = Math.max(LEAST_BYTES_PRUNED, 2 * this.#copied)
  }
}

function takenAway(): UsageError {
  return new UsageError('the buffer of a message was detached before all of it was sent')
}
