/** What {@link Doorstep} ends. */
export interface Visitor {
  close(reason: string): void
}

/**
 * Connections that have not shown yet who they are. Each has a few seconds, and when there are many the oldest
 * makes room: a client that speaks the protocol is done within two round trips, so no number of silent ones
 * keeps it out, and they take none of the places of sessions.
 */
export class Doorstep {
  readonly #limit: number
  readonly #deadlineMs: number
  readonly #visitors = new Map<Visitor, NodeJS.Timeout>()

  constructor(limit: number, deadlineMs: number) {
    this.#limit = limit
    this.#deadlineMs = deadlineMs
  }

  get size(): number {
    return this.#visitors.size
  }

  enter(visitor: Visitor): void {
    const [oldest] = this.#visitors.keys()
    if (this.#visitors.size >= this.#limit && oldest !== undefined)
      this.#end(oldest, 'too many connections that have not said who they are')
    const timer = setTimeout(
      () => this.#end(visitor, `it has not said who it is within ${this.#deadlineMs} ms`),
      this.#deadlineMs,
    )
    timer.unref()
    this.#visitors.set(visitor, timer)
  }

  /** It has shown who it is, or it is gone. Idempotent. */
  leave(visitor: Visitor): void {
    clearTimeout(this.#visitors.get(visitor))
    this.#visitors.delete(visitor)
  }

  /** Ends all that are there. */
  close(reason: string): void {
    for (const visitor of [...this.#visitors.keys()]) this.#end(visitor, reason)
  }

  #end(visitor: Visitor, reason: string): void {
    this.leave(visitor)
    visitor.close(reason)
  }
}
