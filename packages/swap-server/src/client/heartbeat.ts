import { LONGEST_MS } from '@rdmakit/verbs/internal'
import { StallAwareClock } from '../protocol/stall-aware-clock.js'

export interface HeartbeatOptions {
  /** milliseconds from an answer to the next question */
  readonly interval: number
  /** milliseconds of silence after a question that mean that the peer is dead */
  readonly timeout: number
  /** Asks the peer, and settles with its answer; a rejection is the end. */
  readonly ask: (timeout: number) => Promise<void>
  /** The last call. */
  readonly dead: (reason: string) => void
}

const HEARTBEAT_MS = 1_000

/** How many times per interval a stall is checked for. */
const LOOKS = 2
/** The question outlives the silence that counts, so that an answer behind a standstill is still one. */
const PATIENCE = 20

/**
 * Regularly asks a peer for a sign of life, by a {@link StallAwareClock}: under the memory pressure that makes a
 * machine swap, its event loop may stall for seconds, with the answer unread.
 */
export class Heartbeat {
  readonly #options: HeartbeatOptions
  readonly #clock: StallAwareClock
  readonly #timer: NodeJS.Timeout
  #asking = false
  /** milliseconds since the last answer, or since the question that has none yet */
  #since = 0

  constructor(options: HeartbeatOptions) {
    this.#options = options
    const every = Math.max(1, Math.min(options.interval, options.timeout) / LOOKS)
    this.#clock = new StallAwareClock(every)
    this.#timer = setInterval(() => this.#look(), every)
    this.#timer.unref()
  }

  /** Idempotent. */
  stop(): void {
    clearInterval(this.#timer)
  }

  #look(): void {
    const { interval, timeout } = this.#options
    const { counted, late } = this.#clock.look()
    this.#since += counted
    if (!this.#asking && this.#since >= interval) void this.#beat()
    else if (this.#asking && this.#since >= timeout && !late)
      this.#end(`the server did not answer for ${Math.round(this.#since)} ms`)
  }

  async #beat(): Promise<void> {
    this.#asking = true
    this.#since = 0
    try {
      await this.#options.ask(Math.min(LONGEST_MS, PATIENCE * this.#options.timeout))
    } catch (failure) {
      this.#end((failure as Error).message)
    } finally {
      this.#asking = false
      this.#since = 0
    }
  }

  #end(reason: string): void {
    this.stop()
    this.#options.dead(reason)
  }
}

/** A beat may come half an interval late, as a timer on a busy machine, before the server loses patience. */
export function heartbeatInterval(sessionTimeout: number): number {
  return sessionTimeout === 0 ? HEARTBEAT_MS : Math.min(HEARTBEAT_MS, Math.max(50, sessionTimeout / 3))
}
