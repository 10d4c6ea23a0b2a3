import { randomBytes, timingSafeEqual } from 'node:crypto'
import { TOKEN_BYTES } from '../protocol/messages.js'

/** What names a session and proves to have had it. */
interface Named {
  readonly id: number
  readonly token: Uint8Array
}

/** A session's id: 48 random bits, exact as a number and never 0, so that one of another epoch names nothing. */
export function drawSessionId(): number {
  return randomBytes(6).readUIntBE(0, 6) || 1
}

/** The session that `id` and `token` name; the token is compared in constant time. */
export function sessionNamed<Session extends Named>(
  sessions: Iterable<Session>,
  id: number,
  token: Uint8Array,
): Session | undefined {
  if (token.length !== TOKEN_BYTES) return undefined
  for (const session of sessions)
    if (session.id === id && timingSafeEqual(session.token, token)) return session
  return undefined
}

/** How long a session outlives its control connection, and the clock that runs when it does. */
export class Linger {
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
