/** How long a session outlives its control connection, and the clock that runs when it does. */
export class LingerTimer {
  #granted = 0
  #timer: NodeJS.Timeout | undefined

  /** milliseconds; 0: not at all */
  get granted(): number {
    return this.#granted
  }

  /** The clock runs: nobody has the session. */
  get running(): boolean {
    return this.#timer !== undefined
  }

  /** Grants what is asked for, at most `most`. @returns what is granted, in milliseconds */
  grant(asked: number, most: number): number {
    this.#granted = Math.min(asked, most)
    return this.#granted
  }

  /** Starts the clock; `end` is called when it has run down. */
  start(end: () => void): void {
    this.stop()
    this.#timer = setTimeout(end, this.#granted)
    this.#timer.unref()
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }
}
