import type { Visitor } from './pending-sessions.js'

/** What a request to connect becomes. */
interface Greeted {
  turnOut(reason: string): void
}

/** Somebody at the doorstep: a request to connect that is being accepted, then a session that nobody has shown to have. */
export class Arrival implements Visitor {
  readonly #accepting = new AbortController()
  #greeting: Greeted | undefined
  #ended: string | undefined

  /** Aborted when it ends before it is accepted. */
  get signal(): AbortSignal {
    return this.#accepting.signal
  }

  /** It is accepted: from now on `greeting` ends with it, at once if it has ended meanwhile. */
  accepted(greeting: Greeted): void {
    this.#greeting = greeting
    if (this.#ended !== undefined) greeting.turnOut(this.#ended)
  }

  close(reason: string): void {
    if (this.#ended !== undefined) return
    this.#ended = reason
    this.#accepting.abort(new Error(reason))
    this.#greeting?.turnOut(reason)
  }
}
