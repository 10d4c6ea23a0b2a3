import type { Visitor } from './doorstep.js'

/** Somebody at the doorstep: a request to connect that is being accepted, then a session that nobody has shown to have. */
export class Arrival implements Visitor {
  readonly #accepting = new AbortController()
  #greeting: { close(reason: string): void } | undefined
  #ended: string | undefined

  /** Aborted when it ends before it is accepted. */
  get signal(): AbortSignal {
    return this.#accepting.signal
  }

  /** Why it had to go; undefined: it has not. */
  get ended(): string | undefined {
    return this.#ended
  }

  /** It is accepted: from now on `greeting` ends with it, at once if it has ended meanwhile. */
  accepted(greeting: { close(reason: string): void }): void {
    this.#greeting = greeting
    if (this.#ended !== undefined) greeting.close(this.#ended)
  }

  close(reason: string): void {
    if (this.#ended !== undefined) return
    this.#ended = reason
    this.#accepting.abort(new Error(reason))
    this.#greeting?.close(reason)
  }
}
