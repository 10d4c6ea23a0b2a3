// The proof that an end of a connection has a key, an HMAC of the messages of both: docs/page-service/trust.md.
import { createHash, createHmac } from 'node:crypto'
import { PROTOCOL_VERSION, UNBOUND_VERSION } from './messages.js'

export const NONCE_BYTES = 32
export const MAC_BYTES = 32

/** Values that both ends know after Hello and Challenge, and that neither can choose alone. */
export interface Transcript {
  readonly serverNonce: Uint8Array
  readonly clientNonce: Uint8Array
  readonly tenant: string
  readonly keyId: string
  /**
   * which connection it is, and what the Hello says beside: {@link boundTo}; undefined: of version 1, whose proofs may
   * be passed on
   */
  readonly bound: Uint8Array | undefined
}

/**
 * What ties a proof to its connection and to all of its Hello.
 * @param hello the request that it came in
 */
export function boundTo(channelBinding: Uint8Array, hello: Uint8Array): Uint8Array {
  return Buffer.concat([channelBinding, sha256(hello)])
}

/** The end that proves to have the key; for a server also that it refuses to resume a session, and how. */
export type Side = 'client' | 'server' | `server refuses ${string}`

/**
 * What proves that `side` has the key.
 * @param about the session's id that Resume names for the client (0: none) and for a refusal; for the server the bytes of
 *   the HelloReply, and of version 1 its session's id
 */
export function macOf(
  secret: Uint8Array,
  side: Side,
  { serverNonce, clientNonce, tenant, keyId, bound }: Transcript,
  about: number | Uint8Array,
): Buffer {
  const version = bound === undefined ? UNBOUND_VERSION : PROTOCOL_VERSION
  return createHmac('sha256', secret)
    .update(`rdmakit swap ${version} ${side}\0`)
    .update(bound ?? Buffer.alloc(0))
    .update(serverNonce)
    .update(clientNonce)
    .update(counted(tenant))
    .update(counted(keyId))
    .update(typeof about === 'number' ? numbered(about) : sha256(about))
    .digest()
}

function numbered(session: number): Buffer {
  const id = Buffer.alloc(8)
  id.writeBigUInt64LE(BigInt(session))
  return id
}

function sha256(bytes: Uint8Array): Buffer {
  return createHash('sha256').update(bytes).digest()
}

/** With its length before it, so that no two pairs of names are the same bytes. */
function counted(text: string): Buffer {
  const bytes = Buffer.from(text)
  return Buffer.concat([Buffer.of(bytes.length), bytes])
}

/** Session ids are drawn below 2^53, as all 64-bit numbers here; others name no session. */
export function sessionIdOf(id: number | null | undefined): number {
  return Number.isSafeInteger(id) && Number(id) >= 0 ? Number(id) : 0
}
