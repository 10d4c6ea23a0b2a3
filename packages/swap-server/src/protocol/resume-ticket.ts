// The ticket that a client sends with its request to connect when it comes back to a session, as the
// application's data of the ring handshake. The server checks it before it gives the connection any memory,
// so that it can distinguish the client from a crowd. The ticket proves nothing else: the following Resume is
// decided as always.
import { createHmac, timingSafeEqual } from 'node:crypto'

const ID_BYTES = 6
const MAC_BYTES = 14
/** Bytes of a ticket: all that a ring handshake has room for. */
export const TICKET_BYTES = ID_BYTES + MAC_BYTES

interface Named {
  readonly id: number
  readonly token: Uint8Array
}

/** @returns none of a session whose id this server does not draw: from 2^48 on, say */
export function ticketOf({ id, token }: Named): Uint8Array {
  if (!Number.isInteger(id) || id < 1 || id >= 2 ** (8 * ID_BYTES)) return new Uint8Array()
  const name = Buffer.alloc(ID_BYTES)
  name.writeUIntBE(id, 0, ID_BYTES)
  return Buffer.concat([name, macOf(name, token)])
}

/** The session of `sessions` whose ticket it is; undefined: of none. The MAC is compared in constant time. */
export function sessionOfTicket<Session extends Named>(
  sessions: Iterable<Session>,
  shown: Uint8Array,
): Session | undefined {
  // InfiniBand and RoCE pad private data with zeros, but the handshake says how long this part is.
  if (shown.length !== TICKET_BYTES) return undefined
  const name = Buffer.from(shown.subarray(0, ID_BYTES))
  const id = name.readUIntBE(0, ID_BYTES)
  for (const session of sessions)
    if (session.id === id)
      return timingSafeEqual(shown.subarray(ID_BYTES), macOf(name, session.token)) ? session : undefined
  return undefined
}

function macOf(name: Uint8Array, token: Uint8Array): Buffer {
  return createHmac('sha256', token)
    .update('rdmakit swap ticket\0')
    .update(name)
    .digest()
    .subarray(0, MAC_BYTES)
}
