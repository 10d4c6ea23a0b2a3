import { Chain, ChainLink } from '../base/chain.js'

/**
 * The memory that one end's unanswered requests may take at the other end: 64 times the ring of the answering
 * end, at most 64 MiB. Both ends compute it without an exchange: the requesting end keeps further requests to
 * itself, and the answering end copies no more than that out of its ring.
 * @param capacity bytes of the ring of the end that answers
 */
export function requestAllowance(capacity: number): number {
  return Math.min(64 * capacity, 2 ** 26)
}

/**
 * Bytes that a request of `length` bytes counts for: its own, and what its message, its handler's promise and the rest
 * of it were measured to take in JavaScript's heap (1,270 bytes, 1,550 of resident memory).
 */
export function requestCost(length: number): number {
  return length + REQUEST_BYTES
}

export const REQUEST_BYTES = 1536

/** One that waits for its turn, or has had it. */
export interface Turn {
  /** bytes */
  readonly cost: number
  /** the allowance's: its place among those who wait, then whether it has its bytes; at first undefined */
  turn: Waiting | 'begun' | 'over' | undefined
  /** Called once, when its bytes are taken. */
  begin(): void
}

/** Most never wait, so that only those who do have a place. */
class Waiting extends ChainLink<Waiting> {
  readonly turn: Turn

  constructor(turn: Turn) {
    super()
    this.turn = turn
  }
}

/** Bytes that are handed out in order of demand: who finds too few waits, and those behind with it. */
export class Allowance {
  /** bytes that may be taken at a time; one alone may take more */
  readonly limit: number
  readonly #waiting = new Chain<Waiting>()
  #used = 0
  #serving = false

  constructor(limit: number) {
    this.limit = limit
  }

  /** bytes that are taken */
  get used(): number {
    return this.#used
  }

  /** those who wait */
  get waiting(): number {
    return this.#waiting.size
  }

  /** True when {@link enter} begins at once. */
  fits(cost: number): boolean {
    return this.#waiting.size === 0 && this.#has(cost)
  }

  /**
   * The turn begins when enough bytes for its cost are available, which it then has until {@link leave}: now, if they
   * are available.
   */
  enter(turn: Turn): void {
    if (!this.#serving && this.fits(turn.cost)) {
      this.#serving = true
      try {
        this.#begin(turn)
      } finally {
        this.#serving = false
      }
    } else {
      turn.turn = new Waiting(turn)
      this.#waiting.add(turn.turn)
    }
    this.#serve()
  }

  /** Gives back the bytes of a turn, or the place of a waiting one. Idempotent. */
  leave(turn: Turn): void {
    if (turn.turn === 'begun') this.#used -= turn.cost
    else if (turn.turn instanceof Waiting) this.#waiting.delete(turn.turn)
    turn.turn = 'over'
    this.#serve()
  }

  #has(cost: number): boolean {
    return this.#used === 0 || this.#used + cost <= this.limit
  }

  #begin(turn: Turn): void {
    turn.turn = 'begun'
    this.#used += turn.cost
    turn.begin()
  }

  #serve(): void {
    // A turn that begins may leave at once, or bring others, which comes back here; the loop below continues for it.
    if (this.#serving || this.#waiting.size === 0) return
    this.#serving = true
    try {
      for (
        let first = this.#waiting.first;
        first !== undefined && this.#has(first.turn.cost);
        first = this.#waiting.first
      ) {
        this.#waiting.delete(first)
        this.#begin(first.turn)
      }
    } finally {
      this.#serving = false
    }
  }
}
