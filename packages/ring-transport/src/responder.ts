import { types } from 'node:util'
import { VerbsError } from '@rdmakit/verbs'
import { encodeError } from './errors.js'
import type { RingMessage } from './message.js'
import { TYPE } from './native.js'

/** Answers requests. The request is readable until the result settles, and holds its part of the ring so long. */
export type RequestHandler = (request: RingMessage) => Uint8Array | Promise<Uint8Array>

/** Sends a frame; a promise when that has to wait. */
export type Post = (type: number, correlation: number, bytes: Uint8Array) => Promise<void> | undefined

/** Responses that wait for a peer to take them: beyond this the connection is broken. */
const MOST_WAITING_BYTES = 2 ** 26
const ENTRY_BYTES = 512

/** Runs the handler on the peer's requests and sends what it returns. */
export class Responder {
  handler: RequestHandler | undefined
  readonly #post: Post
  readonly #overflow: () => void
  #running = 0
  /** bytes of responses that wait for room at the peer, each with what remembering it takes */
  #waiting = 0
  #idle: (() => void) | undefined

  /** @param overflow called when the peer asks on and on and takes no answers */
  constructor(post: Post, overflow: () => void) {
    this.#post = post
    this.#overflow = overflow
  }

  /** requests whose response is not on its way yet */
  get running(): number {
    return this.#running
  }

  answer(request: RingMessage): void {
    this.#running++
    const respond = (bytes: Uint8Array) => this.#respond(request, TYPE.response, bytes)
    const fail = (failure: unknown) => this.#respond(request, TYPE.error, encodeError(failure))
    if (this.handler === undefined) {
      fail(new VerbsError('ENOSYS', 'request', 'the peer', 'it has no handler'))
      return
    }
    try {
      const result = this.handler(request)
      if (types.isUint8Array(result)) respond(result)
      else Promise.resolve(result).then(respond, fail).catch(fail)
    } catch (failure) {
      fail(failure)
    }
  }

  /** Resolves when no handler runs and every response is on its way. */
  async idle(): Promise<void> {
    while (this.#running > 0)
      await new Promise<void>((resolve) => {
        this.#idle = resolve
      })
  }

  #respond(request: RingMessage, type: number, bytes: Uint8Array): void {
    const { correlation } = request
    request.release()
    const sent = this.#post(type, correlation, bytes)
    if (sent === undefined) {
      this.#finish()
      return
    }
    // Requests that run hold their part of the ring, so the peer can have only so many; those that are
    // answered do not any more, and holding them back could stop two ends that ask each other for ever.
    const waiting = (bytes?.length ?? 0) + ENTRY_BYTES // a handler may return what is no bytes at all
    this.#waiting += waiting
    if (this.#waiting > MOST_WAITING_BYTES) this.#overflow()
    // A response that cannot be sent, too long or not even bytes, is the handler's fault: the requester
    // is told. When the connection has ended, that fails too, and there is nobody to tell.
    sent
      .catch((failure) => this.#post(TYPE.error, correlation, encodeError(failure)))
      .catch(() => {})
      .finally(() => {
        this.#waiting -= waiting
        this.#finish()
      })
  }

  #finish(): void {
    if (--this.#running > 0) return
    this.#idle?.()
    this.#idle = undefined
  }
}
