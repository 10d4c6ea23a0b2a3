// The server's end of the HMAC challenge: docs/page-service/trust.md.
import { randomBytes, timingSafeEqual } from 'node:crypto'
import type { ControlConnection } from '../../protocol/control-connection.js'
import { control, PROTOCOL_VERSION, UNBOUND_VERSION } from '../../protocol/messages.js'
import { boundTo, MAC_BYTES, macOf, NONCE_BYTES, sessionIdOf, type Transcript } from '../../protocol/proof.js'
import { Refusal } from '../../protocol/refusal.js'
import { type TakeOver, takeOverOf } from '../../protocol/take-over-number.js'
import type { Tenant, Tenants } from '../tenants/tenants.js'

/** Not exported: every {@link ProvenClient} was made here. */
const PROVEN = Symbol('proven')

/** A client that has authenticated: without one there is no session. */
export interface ProvenClient {
  readonly [PROVEN]: true
  /** over which it has */
  readonly connection: ControlConnection
  readonly hello: control.Hello.$Properties
  readonly tenant: Tenant
  /** the key that it proved to have; undefined: the tenant needs none */
  readonly keyId: string | undefined
  /** @throws Refusal EPROTO */
  takeOver(): TakeOver
  /** The answer that gives it `reply`, with a proof that this server has the key if there is one. */
  answer(reply: control.HelloReply.$Properties): control.Response.$Properties
  /** `mac` of the Failure with `code` in its place */
  proveRefusal(code: string): Uint8Array | undefined
}

/** A secret that no client has: the proof for an unknown tenant or key is compared with one made from it. */
const NOBODY = randomBytes(32)

interface Challenged {
  readonly hello: control.Hello.$Properties
  readonly transcript: Transcript
  readonly session: number
}

/**
 * The server's end of one connection: Hello, and with keys Challenge and Proof. Each is accepted once,
 * whatever its result. The caller ends the connection after a refusal.
 */
export class ServerAuthentication {
  readonly #tenants: Tenants
  readonly #connection: ControlConnection
  #challenged: Challenged | undefined
  #over = false

  constructor(tenants: Tenants, connection: ControlConnection) {
    this.#tenants = tenants
    this.#connection = connection
  }

  /**
   * @param request the bytes that it came in
   * @throws Refusal EPROTO, EACCES
   */
  hello(
    hello: control.Hello.$Properties,
    request: Uint8Array,
  ): ProvenClient | { readonly challenge: control.Challenge.$Properties } {
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
        ...this.#introduced(hello, found),
        keyId: undefined,
        answer: (reply) => ({ hello: reply }),
        proveRefusal: () => undefined,
      }
    }
    if (keyId === '') throw this.#refuse('EACCES', 'this server requires a key: --tenant and --key-file')
    if (hello.nonce?.length !== NONCE_BYTES)
      throw this.#refuse('EPROTO', `the client's nonce does not have ${NONCE_BYTES} bytes`)
    // A newer client neither sends nor believes the proof of an older version, so a man in the middle cannot
    // downgrade two newer ends.
    const bound = version === UNBOUND_VERSION ? undefined : boundTo(this.#connection.channelBinding, request)
    const nonce = randomBytes(NONCE_BYTES)
    this.#challenged = {
      hello,
      transcript: { serverNonce: nonce, clientNonce: hello.nonce, tenant, keyId, bound },
      session: sessionIdOf(hello.resume?.session),
    }
    return { challenge: { nonce } }
  }

  /** @throws Refusal EPROTO, EACCES: in the same words for each thing that can be wrong */
  proof({ mac }: control.Proof.$Properties): ProvenClient {
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
      ...this.#introduced(hello, found),
      keyId,
      answer: (reply) => proven(reply, key.secret, transcript),
      proveRefusal: (code) => macOf(key.secret, `server refuses ${code}`, transcript, session),
    }
  }

  #introduced(hello: control.Hello.$Properties, tenant: Tenant) {
    const takeOver = () => {
      const said = takeOverOf(hello.takeOver)
      if (said === undefined) throw new Refusal('EPROTO', 'the take-over number is invalid')
      return said
    }
    return { [PROVEN]: true, connection: this.#connection, hello, tenant, takeOver } as const
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
