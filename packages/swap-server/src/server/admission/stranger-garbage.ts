/** Strangers after which their litter is worth collecting, and milliseconds between two collections at least. */
const MANY = 64
const EVERY_MS = 200

/**
 * The garbage of unauthenticated peers in the heap: each costs some 30 KiB of objects that outlive a
 * scavenge, and some memory outside of the heap that is freed with them. V8 lets the heap grow to four times
 * its live size before it collects that; a crowd would keep 100 MiB in use while it comes. So the heap, which
 * is small, is collected after a certain number of peers.
 */
export class StrangerGarbage {
  readonly #collect: () => void
  #strangers = 0
  #last = Number.NEGATIVE_INFINITY

  /** @param collect takes as long as a collection of the whole heap does */
  constructor(collect: () => void) {
    this.#collect = collect
  }

  /** One more peer has come. */
  stranger(now = performance.now()): void {
    if (++this.#strangers < MANY || now - this.#last < EVERY_MS) return
    this.#strangers = 0
    this.#last = now
    this.#collect()
  }
}
