// The client's end of the HMAC challenge: docs/page-service/trust.md.
import { randomBytes, timingSafeEqual } from 'node:crypto'
import type { Key } from '../protocol/key-file.js'
import { type control, PROTOCOL_VERSION } from '../protocol/messages.js'
import { boundTo, MAC_BYTES, macOf, NONCE_BYTES, type Side, type Transcript } from '../protocol/proof.js'

/** The client's end: its messages, and its checks before it trusts the server. */
export class ClientAuthentication {
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
