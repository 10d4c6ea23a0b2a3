import { types } from 'node:util'
import { getHeapStatistics } from 'node:v8'

/** That control code has failed where no caller could catch it, and the process goes on all the same. */
export interface Impairment {
  /** of the first failure */
  readonly reason: string
  /** when that was, ISO 8601 */
  readonly since: string
  readonly failures: number
}

/** A failure that comes back with each tick of a timer must not fill the log. */
const TOLD = 20
const HEAP_INTERVAL_MS = 500

/** V8 collects garbage long before, so what is used is what is held. */
export function nearlyFull(used: number, limit: number): boolean {
  return used > 0.85 * limit
}

/**
 * What stands between a failure that nothing has caught, of a timer, a callback or a promise that nobody awaits, and the
 * end of the process, which is what Node.js makes of the first one. Pages need no JavaScript: whether they are
 * better served without a sound control path or by the next process is for `react` to decide.
 *
 * A heap that is full is past help: V8 ends the process (SIGABRT). So one that is nearly full is such a failure.
 */
export class LastResort {
  readonly #react: (failure: Error, told: boolean) => void
  #first: { readonly reason: string; readonly since: string } | undefined
  #failures = 0

  /** @param react called for each failure; `told`: it is one of the first, and may be printed */
  constructor(react: (failure: Error, told: boolean) => void) {
    this.#react = react
  }

  /** From now on no failure ends this process by itself. */
  install(): this {
    // Rejections that nobody handles come here, too (node --unhandled-rejections=throw, the default).
    process.on('uncaughtException', (thrown: unknown) => this.failed(thrown))
    const watch = setInterval(() => {
      const { used_heap_size: used, heap_size_limit: limit } = getHeapStatistics()
      if (!nearlyFull(used, limit)) return
      clearInterval(watch)
      this.failed(new Error(`the heap is nearly full: ${used} of ${limit} bytes are used`))
    }, HEAP_INTERVAL_MS)
    watch.unref()
    return this
  }

  /** @internal something was thrown, which may be anything */
  failed(thrown: unknown): void {
    const failure = types.isNativeError(thrown) ? thrown : new Error(String(thrown))
    this.#failures++
    this.#first ??= { reason: failure.message, since: new Date().toISOString() }
    this.#react(failure, this.#failures <= TOLD)
  }

  /** undefined: nothing has failed */
  get impairment(): Impairment | undefined {
    return this.#first && { ...this.#first, failures: this.#failures }
  }
}

/** One line for people. */
export function describeImpairment({ reason, since, failures }: Impairment): string {
  return `its control code has failed${failures === 1 ? '' : ` ${failures} times`}, first at ${since}: ${reason}`
}
