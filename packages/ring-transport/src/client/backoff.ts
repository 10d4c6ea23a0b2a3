import { UsageError } from '@rdmakit/verbs'

/** How long a {@link RingClient} waits before it connects again, and how often it tries. */
export interface ReconnectOptions {
  /** milliseconds that the first wait takes at most, 1 … 3600000, default 100 */
  readonly min?: number | undefined
  /** milliseconds that any wait takes at most, at least `min`, default 10000 */
  readonly max?: number | undefined
  /** by which the limit grows from wait to wait, 1 … 100, default 2 */
  readonly factor?: number | undefined
  /** attempts in a row that may fail before the client gives up, from 1, default without end */
  readonly maxAttempts?: number | undefined
}

/**
 * Exponential backoff with full jitter: each wait is random between nothing and a limit that grows, so that
 * clients that lost one server together do not come back together
 * (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
 */
export class Backoff {
  readonly maxAttempts: number
  readonly #min: number
  readonly #max: number
  readonly #factor: number
  #limit: number

  /** @throws UsageError naming the option that is out of range */
  constructor(options: ReconnectOptions = {}) {
    const { min = 100, factor = 2, maxAttempts = Number.POSITIVE_INFINITY } = options
    const { max = Math.max(10_000, min) } = options
    range('reconnect.min', min, 1, 3_600_000)
    range('reconnect.max', max, min, 3_600_000)
    range('reconnect.factor', factor, 1, 100)
    range('reconnect.maxAttempts', maxAttempts, 1, Number.POSITIVE_INFINITY)
    this.#min = min
    this.#max = max
    this.#factor = factor
    this.#limit = min
    this.maxAttempts = maxAttempts
  }

  /** Milliseconds to wait now; the next wait may be longer. @param random from 0 to 1 */
  next(random = Math.random()): number {
    const wait = random * this.#limit
    this.#limit = Math.min(this.#max, this.#limit * this.#factor)
    return wait
  }

  /** A connection has lasted: the next wait is short again, if it lasted longer than the longest wait. */
  lasted(milliseconds: number): void {
    if (milliseconds > this.#limit) this.#limit = this.#min
  }
}

function range(name: string, value: number, least: number, most: number): void {
  if (!(value >= least && value <= most))
    throw new UsageError(`${name} must be from ${least} to ${most}, not ${value}`)
}
