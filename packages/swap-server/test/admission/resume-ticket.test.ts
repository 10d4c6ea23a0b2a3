import { randomBytes } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { sessionOfTicket, TICKET_BYTES, ticketOf } from '../../src/protocol/resume-ticket.js'

const sessions = [1, 2, 3].map(() => ({ id: randomBytes(6).readUIntBE(0, 6), token: randomBytes(16) }))
const [mine, other] = sessions as [(typeof sessions)[0], (typeof sessions)[0]]

describe('a ticket', () => {
  it('names its session', () => {
    expect(ticketOf(mine)).toHaveLength(TICKET_BYTES)
    expect(sessionOfTicket(sessions, ticketOf(mine))).toBe(mine)
    expect(sessionOfTicket(sessions, ticketOf(other))).toBe(other)
  })

  it.each([
    ['of another token', ticketOf({ ...mine, token: other.token })],
    ['of a session that is not there', ticketOf({ id: 2 ** 48 - 1 - mine.id, token: mine.token })],
    ['with a bit changed', ticketOf(mine).map((byte, at) => (at === TICKET_BYTES - 1 ? byte ^ 1 : byte))],
    ['that is none', new Uint8Array()],
    ['that is too short', ticketOf(mine).subarray(1)],
    ['of zeros', new Uint8Array(TICKET_BYTES)],
  ])('%s names none', (_, shown) => {
    expect(sessionOfTicket(sessions, shown)).toBeUndefined()
  })

  it.each([0, -1, 2 ** 48, 2 ** 53, 1.5, Number.NaN])('of a session %d is none', (id) => {
    expect(ticketOf({ id, token: mine.token })).toHaveLength(0)
  })

  it('does not show the token', () => {
    expect(Buffer.from(ticketOf(mine)).includes(mine.token.subarray(0, 4))).toBe(false)
  })
})
