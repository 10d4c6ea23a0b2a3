// The HMAC challenge, both ends of it: docs/page-service/trust.md.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { Tenant, Tenants } from '../server/tenants/tenants.js'
import type { Key } from './key-file.js'
import { control, PROTOCOL_VERSION, UNBOUND_VERSION } from './messages.js'
import { Refusal } from './refusal.js'

export const NONCE_BYTES = 32
const MAC_BYTES = 32

/** What both ends know after Hello and Challenge, and what neither can choose alone. */
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

/** Who proves to have the key; a server also that it is the one that refuses to let a session be taken up, and how. */
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

/** Who a client is, once it has shown it. */
export interface Admission {
  readonly hello: control.Hello.$Properties
  readonly tenant: Tenant
  /** the key that it proved to have; undefined: the tenant needs none */
  readonly keyId: string | undefined
  /** The answer that gives it `reply`, with a proof that this server has the key if there is one. */
  answer(reply: control.HelloReply.$Properties): control.Response.$Properties
  /** `mac` of the Failure with `code` in its place */
  proveRefusal(code: string): Uint8Array | undefined
}

/** Nobody has it: what an unknown tenant's or key's proof is compared with. */
const NOBODY = randomBytes(32)

interface Challenged {
  readonly hello: control.Hello.$Properties
  readonly transcript: Transcript
  readonly session: number
}

/**
 * The server's end of one connection: Hello, and with keys Challenge and Proof. Each is taken once, whatever
 * comes of it. Whoever calls it ends the connection after a refusal.
 */
export class Greeting {
  readonly #tenants: Tenants
  readonly #channelBinding: Uint8Array
  #challenged: Challenged | undefined
  #over = false

  constructor(tenants: Tenants, channelBinding: Uint8Array) {
    this.#tenants = tenants
    this.#channelBinding = channelBinding
  }

  /**
   * @param request the bytes that it came in
   * @throws Refusal EPROTO, EACCES
   */
  hello(
    hello: control.Hello.$Properties,
    request: Uint8Array,
  ): Admission | { readonly challenge: control.Challenge.$Properties } {
    if (this.#over || this.#challenged !== undefined)
      throw new Refusal('EPROTO', 'a connection says hello once')
    const { version } = hello
    if (version !== PROTOCOL_VERSION && version !== UNBOUND_VERSION)
      throw this.#refuse(
        'EPROTO',
        `the client speaks version ${version} of the control protocol, this server versions ${UNBOUND_VERSION} and ${PROTOCOL_VERSION}`,
      )
    const tenant = hello.tenant ?? ''
    const keyId = hello.keyId ?? ''
    if (Buffer.byteLength(tenant) > 64 || Buffer.byteLength(keyId) > 64)
      throw this.#refuse('EPROTO', 'names of tenants and keys have at most 64 bytes')
    if (!this.#tenants.needKeys) {
      const found = this.#tenants.find(tenant)
      if (found === undefined) throw this.#refuse('EACCES', 'this server has no such tenant')
      this.#over = true
      return {
        hello,
        tenant: found,
        keyId: undefined,
        answer: (reply) => ({ hello: reply }),
        proveRefusal: () => undefined,
      }
    }
    if (keyId === '') throw this.#refuse('EACCES', 'this server wants a key: --tenant and --key-file')
    if (hello.nonce?.length !== NONCE_BYTES)
      throw this.#refuse('EPROTO', `the client's nonce has not ${NONCE_BYTES} bytes`)
    // What an older client proves no newer one proves or believes, so nobody in between can bring two newer ones down to it.
    const bound = version === UNBOUND_VERSION ? undefined : boundTo(this.#channelBinding, request)
    const nonce = randomBytes(NONCE_BYTES)
    this.#challenged = {
      hello,
      transcript: { serverNonce: nonce, clientNonce: hello.nonce, tenant, keyId, bound },
      session: sessionIdOf(hello.resume?.session),
    }
    return { challenge: { nonce } }
  }

  /** @throws Refusal EPROTO, EACCES: in the same words for each thing that can be wrong */
  proof({ mac }: control.Proof.$Properties): Admission {
    const challenged = this.#challenged
    if (this.#over || challenged === undefined) throw new Refusal('EPROTO', 'there is no challenge to answer')
    this.#over = true
    const { hello, transcript, session } = challenged
    const { tenant, keyId } = transcript
    // The keys of now, not of the Hello: they may have been taken out in between.
    const key = this.#tenants.findKey(tenant, keyId)
    const expected = macOf(key?.secret ?? NOBODY, 'client', transcript, session)
    const right = mac?.length === MAC_BYTES && timingSafeEqual(mac, expected)
    const found = this.#tenants.find(tenant)
    if (!right || key === undefined || found === undefined)
      throw new Refusal('EACCES', 'the tenant, its key or the proof is wrong')
    return {
      hello,
      tenant: found,
      keyId,
      answer: (reply) => proven(reply, key.secret, transcript),
      proveRefusal: (code) => macOf(key.secret, `server refuses ${code}`, transcript, session),
    }
  }

  #refuse(code: string, message: string): Refusal {
    this.#over = true
    return new Refusal(code, message)
  }
}

/** `reply` with the proof that this server has the key, as the client's version wants it. */
function proven(
  reply: control.HelloReply.$Properties,
  secret: Uint8Array,
  transcript: Transcript,
): control.Response.$Properties {
  if (transcript.bound === undefined) {
    const mac = macOf(secret, 'server', transcript, sessionIdOf(reply.session))
    return { hello: { ...reply, mac } }
  }
  const bytes = control.HelloReply.encode(reply).finish()
  return { provenHello: { reply: bytes, mac: macOf(secret, 'server', transcript, bytes) } }
}

/** Session ids are drawn below 2^53, as all 64-bit numbers here; others name no session. */
function sessionIdOf(id: number | null | undefined): number {
  return Number.isSafeInteger(id) && Number(id) >= 0 ? Number(id) : 0
}

/** The client's end: what it says, and what it wants to see before it trusts the server. */
export class Proving {
  readonly nonce = randomBytes(NONCE_BYTES)
  readonly #key: Key
  readonly #tenant: string
  readonly #channelBinding: Uint8Array
  #transcript: Transcript | undefined

  constructor(tenant: string, key: Key, channelBinding: Uint8Array) {
    this.#tenant = tenant
    this.#key = key
    this.#channelBinding = channelBinding
  }

  /** Fields of the Hello. */
  get introduction() {
    return { version: PROTOCOL_VERSION, tenant: this.#tenant, keyId: this.#key.id, nonce: this.nonce }
  }

  /**
   * @param hello the request that the Hello went in
   * @param resume the session id in the Hello's Resume; 0: none
   * @returns undefined when it is no challenge to answer
   */
  answer(
    { nonce }: control.Challenge.$Properties,
    hello: Uint8Array,
    resume: number,
  ): control.Proof.$Properties | undefined {
    if (nonce?.length !== NONCE_BYTES || this.#transcript !== undefined) return undefined
    this.#transcript = {
      serverNonce: nonce,
      clientNonce: this.nonce,
      tenant: this.#tenant,
      keyId: this.#key.id,
      bound: boundTo(this.#channelBinding, hello),
    }
    return { mac: macOf(this.#key.secret, 'client', this.#transcript, resume) }
  }

  /** @returns true when the server has proved to have the key too, over this connection, and to say just this */
  accepts({ reply, mac }: control.ProvenHello.$Properties): boolean {
    return reply != null && this.#isProof('server', mac, reply)
  }

  /**
   * @param resume the session id in the Hello's Resume
   * @returns true when who refuses it with `code` has proved to have the key
   */
  acceptsRefusal(code: string, mac: Uint8Array | undefined, resume: number): boolean {
    return this.#isProof(`server refuses ${code}`, mac, resume)
  }

  #isProof(side: Side, mac: Uint8Array | null | undefined, about: number | Uint8Array): boolean {
    if (this.#transcript === undefined || mac?.length !== MAC_BYTES) return false
    return timingSafeEqual(mac, macOf(this.#key.secret, side, this.#transcript, about))
  }
}
