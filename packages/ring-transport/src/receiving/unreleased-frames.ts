/** A frame in the ring, in order of arrival. */
export interface RingFrame {
  /** position of its end, in units modulo 2^32 */
  readonly end: number
  /** whether its bytes may still be read there */
  readonly isHeld: boolean
}

/**
 * Frames that JavaScript has seen and whose bytes it may still read. They are released in any order,
 * the ring is given back in the order of arrival: up to the oldest that is still held.
 */
export class UnreleasedFrames {
  /** those from the first to before the end; places are reused, because an array that shrinks is reallocated */
  #frames: (RingFrame | undefined)[] = []
  #first = 0
  #end = 0
  /** end of the newest frame before which nothing is held */
  released = 0

  get count(): number {
    return this.#end - this.#first
  }

  add(frame: RingFrame): void {
    this.#frames[this.#end++] = frame
  }

  /** A frame that came and is finished. True when {@link released} moved over it: no earlier one is held. */
  pass(end: number): boolean {
    if (this.#end > 0) {
      this.add({ end, isHeld: false })
      return false
    }
    this.released = end
    return true
  }

  /** Moves {@link released} over released frames. False when it did not move. */
  advance(): boolean {
    const from = this.#first
    while (this.#first < this.#end) {
      const frame = this.#frames[this.#first] as RingFrame
      if (frame.isHeld) break
      this.released = frame.end
      this.#frames[this.#first++] = undefined
    }
    const moved = this.#first > from
    if (this.#first === this.#end) {
      this.#first = this.#end = 0
    } else if (this.#first > 1024) {
      this.#frames = this.#frames.slice(this.#first, this.#end)
      this.#end -= this.#first
      this.#first = 0
    }
    return moved
  }
}
