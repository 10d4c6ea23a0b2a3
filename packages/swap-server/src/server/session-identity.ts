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
export function findSession<Session extends Named>(
  sessions: Iterable<Session>,
  id: number,
  token: Uint8Array,
): Session | undefined {
  if (token.length !== TOKEN_BYTES) return undefined
  for (const session of sessions)
    if (session.id === id && timingSafeEqual(session.token, token)) return session
  return undefined
}
