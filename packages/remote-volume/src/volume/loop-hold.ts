/** longer than Node.js would run: it has nothing to do */
const NEVER_MS = 2 ** 31 - 1

/**
 * What keeps the event loop alive for a volume. Its sessions cannot: when the last server is gone, the engine still has
 * requests that wait for it, or a backup.
 */
export class LoopHold {
  #open = false
  #referenced = true
  /** ends of the volume that are awaited */
  #ending = 0
  #timer: NodeJS.Timeout | undefined

  /** The volume is open. */
  begin(): void {
    this.#open = true
    this.#update()
  }

  /** The volume is closed. */
  end(): void {
    this.#open = false
    this.#update()
  }

  /** Whether an open volume is a reason for the program to stay; at first it is. */
  set referenced(referenced: boolean) {
    this.#referenced = referenced
    this.#update()
  }

  /** Waits for a part of the volume's end, with which the program stays in any case. */
  async during(ending: Promise<void>): Promise<void> {
    this.#ending++
    this.#update()
    try {
      await ending
    } finally {
      this.#ending--
      this.#update()
    }
  }

  #update(): void {
    if ((this.#open && this.#referenced) || this.#ending > 0) {
      this.#timer ??= setInterval(() => {}, NEVER_MS)
    } else {
      clearInterval(this.#timer)
      this.#timer = undefined
    }
  }
}
