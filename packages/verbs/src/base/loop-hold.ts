import { Resource } from './resource.js'

/**
 * @internal whether something keeps the event loop alive, and so the program: while there is something to wait for,
 * unless its owner has said that this is no reason to stay.
 */
export class LoopHold {
  readonly #apply: (holds: boolean) => void
  #waits = false
  #referenced = true
  #holds = false

  /** @param apply told of each change; it holds nothing at first */
  constructor(apply: (holds: boolean) => void) {
    this.#apply = apply
  }

  /** There is something to wait for. */
  set waits(waits: boolean) {
    this.#waits = waits
    this.#update()
  }

  /** Whether it keeps the event loop alive while there is. */
  set referenced(referenced: boolean) {
    this.#referenced = referenced
    this.#update()
  }

  #update(): void {
    const holds = this.#waits && this.#referenced
    if (holds === this.#holds) return
    this.#holds = holds
    this.#apply(holds)
  }
}

/** Keeps the event loop running, and so the program, while there is something to wait for: each class says when. */
export abstract class HoldingResource extends Resource {
  /** @internal told when it has something to wait for */
  protected readonly hold = new LoopHold((holds) => {
    if (!this.closed) this.holdLoop(holds)
  })

  /** @internal the native side of it: whether it keeps the event loop alive, which at first it does not */
  protected abstract holdLoop(holds: boolean): void

  /** Keeps the event loop alive while there is something to wait for, which is so unless {@link unref} was called. */
  ref(): this {
    this.hold.referenced = true
    return this
  }

  /** What it waits for is no reason for the program to stay. */
  unref(): this {
    this.hold.referenced = false
    return this
  }
}
