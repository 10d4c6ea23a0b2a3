/** Strangers after which their litter is worth collecting, and milliseconds between two collections at least. */
const MANY = 64
const EVERY_MS = 200

/**
 * What strangers leave in the heap: each costs some 30 KiB of objects that outlive a scavenge, and some memory outside
 * of the heap that goes with them. V8 lets the heap grow to four times what is in use before it collects that; a crowd
 * would have 100 MiB of it for as long as it comes. So the heap, which is small, is collected after so many.
 */
export class StrangerGarbage {
  readonly #collect: () => void
  #strangers = 0
  #last = Number.NEGATIVE_INFINITY

  /** @param collect takes as long as a collection of the whole heap does */
  constructor(collect: () => void) {
    this.#collect = collect
  }

  /** One more has come. */
  stranger(now = performance.now()): void {
    if (++this.#strangers < MANY || now - this.#last < EVERY_MS) return
    this.#strangers = 0
    this.#last = now
    this.#collect()
  }
}
