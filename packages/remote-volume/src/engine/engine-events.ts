/** What the native engine tells, by `type`. */
interface AnyEvent {
  readonly type: string
}

/** The listeners of an engine, and the promises that wait for its events. */
export class EngineEvents {
  readonly #listeners = new Map<string, Set<(event: AnyEvent) => void>>()
  /** what still waits for an event of the engine */
  readonly #waiting = new Set<(failure?: Error) => void>()
  #closed = false

  emit(event: AnyEvent): void {
    for (const listener of this.#listeners.get(event.type) ?? []) listener(event)
  }

  /** @returns a function that unsubscribes */
  on<Event extends AnyEvent>(type: string, listener: (event: Event) => void): () => void {
    const listeners = this.#listeners.get(type) ?? new Set()
    this.#listeners.set(type, listeners)
    const untyped = listener as (event: AnyEvent) => void
    listeners.add(untyped)
    return () => listeners.delete(untyped)
  }

  /** The end that the first of these events brings which `judge` does not call false, or that time brings. */
  outcome<Event extends AnyEvent>(
    types: readonly string[],
    judge: (event: Event) => boolean | Error,
    late?: { readonly milliseconds: number; readonly failure: () => Error },
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = late && setTimeout(() => end(late.failure()), late.milliseconds)
      timer?.unref()
      const end = (failure?: Error) => {
        clearTimeout(timer)
        for (const stop of stops) stop()
        this.#waiting.delete(end)
        if (failure === undefined) resolve()
        else reject(failure)
      }
      const stops = types.map((type) =>
        this.on(type, (event: Event) => {
          const verdict = judge(event)
          if (verdict !== false) end(verdict === true ? undefined : verdict)
        }),
      )
      this.#waiting.add(end)
      if (this.#closed) end(closed())
    })
  }

  /** Later calls that wait never settle. */
  close(): void {
    this.#closed = true
  }

  /** The engine has ended: {@link outcome}s fail that have not come by now. */
  end(): void {
    for (const end of [...this.#waiting]) end(closed())
  }
}

const closed = () => Object.assign(new Error('the engine was closed'), { code: 'ECANCELED' })
