import { Resource } from './resource.js'

/**
 * Keeps the event loop running, and so the program, while there is something to wait for: each class says when. Unless its
 * owner has said that this is no reason to stay.
 */
export abstract class HoldingResource extends Resource {
  #waits = false
  #referenced = true
  #holds = false

  /** @internal there is something to wait for; at first there is not */
  protected set waits(waits: boolean) {
    this.#waits = waits
    this.#update()
  }

  /** @internal the native side of it: whether it keeps the event loop alive, which at first it does not */
  protected abstract holdLoop(holds: boolean): void

  /** Keeps the event loop alive while there is something to wait for, which is so unless {@link unref} was called. */
  ref(): this {
    return this.#refer(true)
  }

  /** What it waits for is no reason for the program to stay. */
  unref(): this {
    return this.#refer(false)
  }

  #refer(referenced: boolean): this {
    this.#referenced = referenced
    this.#update()
    return this
  }

  #update(): void {
    const holds = this.#waits && this.#referenced
    if (holds === this.#holds) return
    this.#holds = holds
    if (!this.closed) this.holdLoop(holds)
  }
}
