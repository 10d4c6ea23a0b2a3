import type { PendingPeer } from './pending-sessions.js'

/** The result of a request to connect. */
interface Handshake {
  abort(): void
}

/** A request to connect that is being accepted, then a connection whose client has not shown yet who it is. */
export class PendingSession implements PendingPeer {
  readonly #accepting = new AbortController()
  #handshake: Handshake | undefined
  #ended = false

  /** Aborted when it ends before it is accepted. */
  get signal(): AbortSignal {
    return this.#accepting.signal
  }

  /** It is accepted: from now on `handshake` ends with it, at once if it has ended meanwhile. */
  accepted(handshake: Handshake): void {
    this.#handshake = handshake
    if (this.#ended) handshake.abort()
  }

  close(reason: string): void {
    if (this.#ended) return
    this.#ended = true
    this.#accepting.abort(new Error(reason))
    this.#handshake?.abort()
  }
}
