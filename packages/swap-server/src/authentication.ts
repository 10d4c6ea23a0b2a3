// The HMAC challenge, both ends of it: docs/page-service/trust.md.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { type control, PROTOCOL_VERSION } from './protocol.js'
import { Refusal } from './refusal.js'
import type { Key } from './secret-file.js'
import type { Tenant, Tenants } from './tenants.js'

export const NONCE_BYTES = 32
const MAC_BYTES = 32

/** What both ends know after Hello and Challenge, and what neither can choose alone. */
export interface Transcript {
  readonly serverNonce: Uint8Array
  readonly clientNonce: Uint8Array
  readonly tenant: string
  readonly keyId: string
}

/** Who proves to have the key; a server also that it is the one that refuses to let a session be taken up, and how. */
export type Side = 'client' | 'server' | `server refuses ${string}`

/**
 * What proves that `side` has the key.
 * @param session the id that Resume names for the client (0: none) and for a refusal, that of HelloReply for the server
 */
export function macOf(
  secret: Uint8Array,
  side: Side,
  { serverNonce, clientNonce, tenant, keyId }: Transcript,
  session: number,
): Buffer {
  const id = Buffer.alloc(8)
  id.writeBigUInt64LE(BigInt(session))
  return createHmac('sha256', secret)
    .update(`rdmakit swap 1 ${side}\0`)
    .update(serverNonce)
    .update(clientNonce)
    .update(counted(tenant))
    .update(counted(keyId))
    .update(id)
    .digest()
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
  /** `mac` of the HelloReply of this session; undefined without a key */
  prove(session: number): Uint8Array | undefined
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
  #challenged: Challenged | undefined
  #over = false

  constructor(tenants: Tenants) {
    this.#tenants = tenants
  }

  /** @throws Refusal EPROTO, EACCES */
  hello(hello: control.Hello.$Properties): Admission | { readonly challenge: control.Challenge.$Properties } {
    if (this.#over || this.#challenged !== undefined)
      throw new Refusal('EPROTO', 'a connection says hello once')
    const { version } = hello
    if (version !== PROTOCOL_VERSION)
      throw this.#refuse(
        'EPROTO',
        `the client speaks version ${version} of the control protocol, this server version ${PROTOCOL_VERSION}`,
      )
    const tenant = hello.tenant ?? ''
    const keyId = hello.keyId ?? ''
    if (Buffer.byteLength(tenant) > 64 || Buffer.byteLength(keyId) > 64)
      throw this.#refuse('EPROTO', 'names of tenants and keys have at most 64 bytes')
    if (!this.#tenants.needKeys) {
      const found = this.#tenants.find(tenant)
      if (found === undefined) throw this.#refuse('EACCES', 'this server has no such tenant')
      this.#over = true
      return { hello, tenant: found, keyId: undefined, prove: () => undefined, proveRefusal: () => undefined }
    }
    if (keyId === '') throw this.#refuse('EACCES', 'this server wants a key: --tenant and --key-file')
    if (hello.nonce?.length !== NONCE_BYTES)
      throw this.#refuse('EPROTO', `the client's nonce has not ${NONCE_BYTES} bytes`)
    const nonce = randomBytes(NONCE_BYTES)
    this.#challenged = {
      hello,
      transcript: { serverNonce: nonce, clientNonce: hello.nonce, tenant, keyId },
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
      prove: (opened) => macOf(key.secret, 'server', transcript, opened),
      proveRefusal: (code) => macOf(key.secret, `server refuses ${code}`, transcript, session),
    }
  }

  #refuse(code: string, message: string): Refusal {
    this.#over = true
    return new Refusal(code, message)
  }
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
  #serverNonce: Uint8Array | undefined

  constructor(tenant: string, key: Key) {
    this.#tenant = tenant
    this.#key = key
  }

  /** Fields of the Hello. */
  get introduction() {
    return { tenant: this.#tenant, keyId: this.#key.id, nonce: this.nonce }
  }

  /**
   * @param resume the session id in the Hello's Resume; 0: none
   * @returns undefined when it is no challenge to answer
   */
  answer({ nonce }: control.Challenge.$Properties, resume: number): control.Proof.$Properties | undefined {
    if (nonce?.length !== NONCE_BYTES || this.#serverNonce !== undefined) return undefined
    this.#serverNonce = nonce
    return { mac: macOf(this.#key.secret, 'client', this.#transcript(nonce), resume) }
  }

  /** @returns true when the server has proved to have the key too */
  accepts({ mac, session }: control.HelloReply.$Properties): boolean {
    return this.#isProof('server', mac, sessionIdOf(session))
  }

  /**
   * @param resume the session id in the Hello's Resume
   * @returns true when who refuses it with `code` has proved to have the key
   */
  acceptsRefusal(code: string, mac: Uint8Array | undefined, resume: number): boolean {
    return this.#isProof(`server refuses ${code}`, mac, resume)
  }

  #isProof(side: Side, mac: Uint8Array | null | undefined, session: number): boolean {
    if (this.#serverNonce === undefined || mac?.length !== MAC_BYTES) return false
    return timingSafeEqual(mac, macOf(this.#key.secret, side, this.#transcript(this.#serverNonce), session))
  }

  #transcript(serverNonce: Uint8Array): Transcript {
    return { serverNonce, clientNonce: this.nonce, tenant: this.#tenant, keyId: this.#key.id }
  }
}
