/** A frame in the ring, in order of arrival. */
export interface Held {
  /** position of its end, in units modulo 2^32 */
  readonly end: number
  readonly isReleased: boolean
}

/**
 * Frames that JavaScript has seen and whose bytes it may still read. They are released in any order,
 * the ring is given back in the order of arrival: up to the oldest that is still held.
 */
export class HeldFrames {
  #frames: Held[] = []
  #first = 0
  /** end of the newest frame before which nothing is held */
  released = 0

  get count(): number {
    return this.#frames.length - this.#first
  }

  add(frame: Held): void {
    this.#frames.push(frame)
  }

  /** A frame that came and is done with. True when {@link released} moved over it: nothing before it is held. */
  pass(end: number): boolean {
    if (this.#frames.length > 0) {
      this.#frames.push({ end, isReleased: true })
      return false
    }
    this.released = end
    return true
  }

  /** Moves {@link released} over what was let go. False when it did not move. */
  advance(): boolean {
    const from = this.#first
    for (;;) {
      const frame = this.#frames[this.#first]
      if (frame === undefined || !frame.isReleased) break
      this.released = frame.end
      this.#first++
    }
    const moved = this.#first > from
    if (this.#first === this.#frames.length) {
      if (this.#first > 0) this.#frames.length = 0
      this.#first = 0
    } else if (this.#first > 1024) {
      this.#frames = this.#frames.slice(this.#first)
      this.#first = 0
    }
    return moved
  }
}
