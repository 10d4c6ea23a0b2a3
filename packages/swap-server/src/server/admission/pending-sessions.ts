/** A peer that {@link PendingSessions} may end. */
export interface PendingPeer {
  close(reason: string): void
}

export interface PendingSessionsOptions {
  /** places for those who are greeted and have shown nothing */
  readonly places: () => number
  /** of those who wait for such a place */
  readonly line: () => number
  /** milliseconds in which a visitor shows who it is; one that waits has as long again */
  readonly deadline: number
  /** milliseconds that a visitor has in any case, however many others come: some round trips of a slow network */
  readonly grace: number
}

interface Stay {
  readonly timer: NodeJS.Timeout
  /** of performance.now() */
  readonly since: number
  /** of whom it has shown that it belongs to */
  readonly name: string | undefined
}

interface Waiting {
  readonly since: number
  readonly needsPlace: boolean
  readonly settle: (admitted: boolean) => void
}

/**
 * Milliseconds from one that is served to the next: those who are known are heard in between, and their pages go on. While
 * few wait, nobody waits longer than one of the longer steps, and a peer that comes back at once each time costs little; of
 * a crowd, each is served after one of the shorter.
 */
const LONGEST_STEP_MS = 24
const SHORTEST_STEP_MS = 4

/**
 * Clients that have not authenticated yet, from the moment that their request to connect arrives. First they
 * wait in line, which costs the server a socket; with a place they get memory and have a few seconds. When
 * the places or the line are full, the oldest makes room, wherever it comes from: a client that speaks the
 * protocol is done within a few round trips, for which it has time, so no number of others keeps it out, and
 * they take none of the places of sessions. A client whose ticket shows that it belongs to a session
 * (resume-ticket.ts) does not wait, and has a place that no crowd takes; among those of one session the
 * oldest makes room.
 */
export class PendingSessions {
  readonly #options: PendingSessionsOptions
  /** the oldest first */
  readonly #visitors = new Map<PendingPeer, Stay>()
  readonly #named = new Map<string, PendingPeer>()
  /** the first to come first */
  readonly #line = new Set<Waiting>()
  #serving: NodeJS.Timeout | undefined
  /** when one was served last, of performance.now() */
  #served = 0
  #closed = false

  constructor(options: PendingSessionsOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#visitors.size
  }

  /** How many wait in line. */
  get waiting(): number {
    return this.#line.size
  }

  /**
   * Waits for the turn of one more.
   * @param needsPlace it is going to {@link enter}; else it is to be refused, which takes its turn too: a crowd that is
   *   refused comes back at once
   * @returns false: its time was over, or others came
   */
  turn(needsPlace = true): Promise<boolean> {
    if (this.#closed) return Promise.resolve(false)
    if (this.#serving === undefined && (!needsPlace || this.#roomIn() <= 0)) {
      this.#served = performance.now()
      this.#serveLater()
      return Promise.resolve(true)
    }
    return new Promise((settle) => {
      const [first] = this.#line
      if (first !== undefined && this.#line.size >= this.#options.line()) this.#dismiss(first, false)
      this.#line.add({ since: performance.now(), needsPlace, settle })
      this.#serveLater()
    })
  }

  /**
   * Gives it a place, if need be the oldest's.
   * @param name of the session that it has shown to belong to
   */
  enter(visitor: PendingPeer, name?: string): void {
    if (name !== undefined) this.#end(this.#named.get(name), 'another connection of its session has arrived')
    else if (this.#unknown >= this.#options.places())
      this.#end(this.#oldest()?.[0], 'too many connections that have not identified themselves')
    const { deadline } = this.#options
    const late = () => this.#end(visitor, `it did not identify itself within ${deadline} ms`)
    const timer = setTimeout(late, deadline)
    timer.unref()
    this.#visitors.set(visitor, { timer, since: performance.now(), name })
    if (name !== undefined) this.#named.set(name, visitor)
  }

  /** It has shown to belong to the session `name`: from now on it has a place as if it had entered so. */
  belong(visitor: PendingPeer, name: string): void {
    const stay = this.#visitors.get(visitor)
    if (stay === undefined || stay.name === name) return
    this.#end(this.#named.get(name), 'another connection of its session has arrived')
    if (stay.name !== undefined) this.#named.delete(stay.name)
    this.#visitors.set(visitor, { ...stay, name })
    this.#named.set(name, visitor)
  }

  /** A session has it, or it is gone. Idempotent. */
  leave(visitor: PendingPeer): void {
    const stay = this.#visitors.get(visitor)
    if (stay === undefined) return
    clearTimeout(stay.timer)
    this.#visitors.delete(visitor)
    if (stay.name !== undefined && this.#named.get(stay.name) === visitor) this.#named.delete(stay.name)
    if (this.#line.size > 0) this.#serveLater()
  }

  /** Ends all pending peers. */
  close(reason: string): void {
    this.#closed = true
    clearTimeout(this.#serving)
    for (const waiting of [...this.#line]) this.#dismiss(waiting, false)
    for (const visitor of [...this.#visitors.keys()]) this.#end(visitor, reason)
  }

  get #unknown(): number {
    return this.#visitors.size - this.#named.size
  }

  #oldest(): readonly [PendingPeer, Stay] | undefined {
    for (const visit of this.#visitors) if (visit[1].name === undefined) return visit
    return undefined
  }

  /** Milliseconds until there is room for one more; 0 or less: there is. */
  #roomIn(): number {
    if (this.#unknown < this.#options.places()) return 0
    const [, oldest] = this.#oldest() ?? []
    return oldest === undefined ? 0 : oldest.since + this.#options.grace - performance.now()
  }

  /** As soon as may be: again when one more waits, or has gone. */
  #serveLater(): void {
    if (this.#closed) return
    clearTimeout(this.#serving)
    const [first] = this.#line
    const wait = first?.needsPlace === true ? this.#roomIn() : 0
    const step = Math.max(SHORTEST_STEP_MS, LONGEST_STEP_MS / Math.max(1, this.#line.size))
    this.#serving = setTimeout(() => this.#serve(), Math.max(this.#served + step - performance.now(), wait))
    this.#serving.unref()
  }

  #serve(): void {
    this.#serving = undefined
    const last = performance.now() - this.#options.deadline
    for (const waiting of this.#line) {
      if (waiting.since <= last) this.#dismiss(waiting, false)
      else {
        if (!waiting.needsPlace || this.#roomIn() <= 0) {
          this.#served = performance.now()
          this.#dismiss(waiting, true)
        }
        break
      }
    }
    if (this.#line.size > 0) this.#serveLater()
  }

  #dismiss(waiting: Waiting, admitted: boolean): void {
    this.#line.delete(waiting)
    waiting.settle(admitted)
  }

  #end(visitor: PendingPeer | undefined, reason: string): void {
    if (visitor === undefined) return
    this.leave(visitor)
    visitor.close(reason)
  }
}
