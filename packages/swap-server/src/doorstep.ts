/** What {@link Doorstep} ends. */
export interface Visitor {
  close(reason: string): void
}

interface Stay {
  readonly timer: NodeJS.Timeout
  /** of whom it has shown that it belongs to */
  readonly name: string | undefined
}

/**
 * Those who have not shown yet who they are, from the moment that their request to connect comes. Each has a few
 * seconds, and of more than there are places for the oldest makes room, wherever it comes from: a client that speaks
 * the protocol is done within a few round trips, so no number of others keeps it out, and they take none of the places
 * of sessions. Who has shown at the door to belong to a session (ticket.ts) has a place that no crowd takes; of those
 * of one session the oldest makes room.
 */
export class Doorstep {
  readonly #limit: () => number
  readonly #deadlineMs: number
  readonly #visitors = new Map<Visitor, Stay>()
  readonly #named = new Map<string, Visitor>()

  /** @param limit places for those who have shown nothing */
  constructor(limit: () => number, deadlineMs: number) {
    this.#limit = limit
    this.#deadlineMs = deadlineMs
  }

  get size(): number {
    return this.#visitors.size
  }

  /** @param name of the session that it has shown to belong to */
  enter(visitor: Visitor, name?: string): void {
    if (name === undefined) this.#makeRoom()
    else this.#end(this.#named.get(name), 'another connection of its session has come')
    const timer = setTimeout(
      () => this.#end(visitor, `it has not said who it is within ${this.#deadlineMs} ms`),
      this.#deadlineMs,
    )
    timer.unref()
    this.#visitors.set(visitor, { timer, name })
    if (name !== undefined) this.#named.set(name, visitor)
  }

  /** It has shown who it is, or it is gone. Idempotent. */
  leave(visitor: Visitor): void {
    const stay = this.#visitors.get(visitor)
    if (stay === undefined) return
    clearTimeout(stay.timer)
    this.#visitors.delete(visitor)
    if (stay.name !== undefined && this.#named.get(stay.name) === visitor) this.#named.delete(stay.name)
  }

  /** Ends all that are there. */
  close(reason: string): void {
    for (const visitor of [...this.#visitors.keys()]) this.#end(visitor, reason)
  }

  #makeRoom(): void {
    const unknown = this.#visitors.size - this.#named.size
    if (unknown < this.#limit()) return
    for (const [visitor, { name }] of this.#visitors) {
      if (name !== undefined) continue
      this.#end(visitor, 'too many connections that have not said who they are')
      return
    }
  }

  #end(visitor: Visitor | undefined, reason: string): void {
    if (visitor === undefined) return
    this.leave(visitor)
    visitor.close(reason)
  }
}
