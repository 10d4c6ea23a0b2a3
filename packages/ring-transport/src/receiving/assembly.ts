import { unwritten } from '../base/own-memory.js'
import { TYPE } from '../native.js'
import { RingMessage } from './message.js'
import type { Place } from './place.js'

// A message that is longer than a frame goes in parts: frames of type `part`, each with the bytes of the whole as its
// correlation and its type as its immediate, then one of type `last` with the rest and with what a frame of that type
// carries. Nothing comes between them. A `last` without bytes says that the message was abandoned: it will
// not come. So the sender may stop at any part, and a message that waits for room needs no copy.

/** The connection, as assembling uses it. */
export interface PartsHost {
  /** Keeps the place of a message in the order of all. */
  hold(): Place
  /** Counts memory, now or later: {@link TransferMemory.reserve}. */
  reserve(length: number, begin: () => void): () => void
  /** A request or a response is complete. */
  deliver(type: number, message: RingMessage): void
}

/** The messages in parts of the peer. One at a time comes; those before it may still wait for memory, in the ring. */
export class Assembly {
  readonly #host: PartsHost
  /** bytes of the longest */
  readonly #longest: number
  /** those that are not there as a whole, in order; of the last one more parts are to come */
  readonly #open = new Set<Parted>()
  #coming: Parted | undefined

  /** @param longest what this end has told its peer that it takes */
  constructor(host: PartsHost, longest: number) {
    this.#host = host
    this.#longest = longest
  }

  /** Messages that are not there as a whole. */
  get count(): number {
    return this.#open.size
  }

  /** Whether a frame of a type may come now: within a message, nothing but the rest of it. */
  mayCome(type: number): boolean {
    return this.#coming === undefined || type === TYPE.part || type === TYPE.last
  }

  /**
   * A frame of type part or last.
   * @returns what the peer did wrong, if anything
   */
  receive(type: number, frame: RingMessage): string | undefined {
    const wrong = type === TYPE.part ? this.#part(frame) : this.#last(frame)
    if (wrong !== undefined) frame.release()
    return wrong
  }

  /** The connection has ended: incomplete messages will not be completed. */
  end(): void {
    this.#coming?.giveUp()
    this.#coming = undefined
    // Messages that wait for memory have arrived, and are in the ring: they are not more than that.
    for (const parted of [...this.#open]) parted.begin()
  }

  #part(frame: RingMessage): string | undefined {
    const { correlation: length, immediate: type } = frame
    const coming = this.#coming ?? this.#first(type, length)
    if (typeof coming === 'string') return coming
    if (type !== coming.type || length !== coming.length) return 'a part of another message'
    if (frame.length === 0 || coming.arrived + frame.length >= length)
      return 'a part that is empty or has all the rest'
    coming.add(frame)
    return undefined
  }

  #first(type: number, length: number): Parted | string {
    if (type !== TYPE.data && type !== TYPE.request && type !== TYPE.response)
      return `parts of a frame of type ${type}`
    if (length > this.#longest)
      return `a message of ${length} bytes in parts, this end takes ${this.#longest}`
    const parted = new Parted(this.#host, type, length, () => this.#open.delete(parted))
    this.#open.add(parted)
    this.#coming = parted
    parted.reserve()
    return parted
  }

  #last(frame: RingMessage): string | undefined {
    const coming = this.#coming
    if (coming === undefined) return 'the end of a message in parts without its beginning'
    this.#coming = undefined
    if (frame.length === 0) {
      frame.release()
      coming.giveUp()
      return undefined
    }
    if (coming.arrived + frame.length === coming.length) {
      coming.add(frame, true)
      return undefined
    }
    coming.giveUp()
    return `a message in parts of ${coming.arrived + frame.length} bytes, and ${coming.length} were to come`
  }
}

/** One message in parts, from the first of them on. */
class Parted {
  readonly type: number
  /** bytes of the whole */
  readonly length: number
  /** bytes that have arrived, in memory or in {@link #frames} */
  arrived = 0
  readonly #host: PartsHost
  readonly #done: () => void
  /** of a message for who takes messages */
  readonly #place: Place | undefined
  /** parts that wait for memory */
  #frames: RingMessage[] = []
  #memory: Uint8Array | undefined
  #filled = 0
  /** the last part has arrived */
  #last: { readonly correlation: number; readonly immediate: number } | undefined
  #giveBack: (() => void) | undefined
  #over = false

  /** @param done called when it is complete, or never will be */
  constructor(host: PartsHost, type: number, length: number, done: () => void) {
    this.#host = host
    this.type = type
    this.length = length
    this.#done = done
    this.#place = type === TYPE.data ? host.hold() : undefined
  }

  /** Asks for memory; it is counted until the message is taken. */
  reserve(): void {
    if (this.#place?.isDiscarded) return
    this.#giveBack = this.#host.reserve(this.length, () => this.begin())
    if (this.#place !== undefined) this.#place.onGone = () => this.#leave()
  }

  /** There is memory for it. */
  begin(): void {
    if (this.#over || this.#memory !== undefined) return
    // Not filled with zeros: it is not visible before all of it has been written.
    this.#memory = unwritten(this.length)
    for (const frame of this.#frames.splice(0)) this.#fill(frame)
    this.#finish()
  }

  add(frame: RingMessage, last = false): void {
    this.arrived += frame.length
    if (last) this.#last = { correlation: frame.correlation, immediate: frame.immediate }
    if (this.#memory !== undefined) this.#fill(frame)
    else if (this.#place?.isDiscarded) frame.release()
    else this.#frames.push(frame)
    if (last) this.#finish()
  }

  /** It will not come. */
  giveUp(): void {
    if (this.#over) return
    this.#over = true
    for (const frame of this.#frames.splice(0)) frame.release()
    this.#leave()
    this.#done()
    this.#place?.settle(null)
  }

  #fill(frame: RingMessage): void {
    frame.moveInto(this.#memory as Uint8Array, this.#filled)
    this.#filled += frame.length
  }

  #finish(): void {
    if (this.#over || this.#last === undefined) return
    if (this.#place?.isDiscarded) {
      this.giveUp()
      return
    }
    const memory = this.#memory
    if (memory === undefined) return
    this.#over = true
    this.#memory = undefined
    this.#done()
    const { correlation, immediate } = this.#last
    const message = new RingMessage(undefined, memory, 0, this.length, 0, correlation, immediate)
    if (this.#place !== undefined) {
      this.#place.settle(message)
      return
    }
    // From here on it counts with the requests, or is the caller's.
    this.#leave()
    this.#host.deliver(this.type, message)
  }

  #leave(): void {
    const giveBack = this.#giveBack
    this.#giveBack = undefined
    giveBack?.()
    // Its parts are not wanted any more.
    if (this.#place?.isDiscarded) for (const frame of this.#frames.splice(0)) frame.release()
  }
}
