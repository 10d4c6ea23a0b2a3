// Invariants of a server's answers, whatever its clients have sent: each is well-formed, nothing is granted before a
// client has authenticated, and memory is lent once, to a tenant that may have it.
import type { Tenants } from '../../packages/swap-server/dist/index.js'
import {
  control,
  PROTOCOL_VERSION,
  UNBOUND_VERSION,
} from '../../packages/swap-server/dist/protocol/messages.js'
import { boundTo, macOf, NONCE_BYTES } from '../../packages/swap-server/dist/protocol/proof.js'
import type { Connection, Session } from './control_clients.js'
import { check } from './control_world.js'

/** The server's state, as far as answers show it. */
export interface Expectations {
  /** whether clients must prove that they have a key */
  readonly keys: boolean
  readonly secret: Buffer
  readonly tenants: Tenants
  /** bytes */
  readonly slabSize: number
  readonly maxLingerMs: number
}

export class Answers {
  readonly sessions: Session[] = []
  readonly #keys: boolean
  readonly #secret: Buffer
  readonly #tenants: Tenants
  readonly #slabSize: number
  readonly #maxLingerMs: number
  /** slabs by id: where they begin, and who has them */
  readonly #slabs = new Map<number, { address: number; of: Session }>()
  readonly #freed = new Set<number>()

  constructor({ keys, secret, tenants, slabSize, maxLingerMs }: Expectations) {
    this.#keys = keys
    this.#secret = secret
    this.#tenants = tenants
    this.#slabSize = slabSize
    this.#maxLingerMs = maxLingerMs
  }

  /**
   * @param request undefined when it was none
   * @param bytes of the request
   */
  take(
    connection: Connection,
    request: control.Request | undefined,
    bytes: Uint8Array,
    response: control.Response,
  ): void {
    const { session } = connection
    if (response.failure) this.#refused(response.failure)
    else if (response.challenge) this.#challenged(connection, request, bytes, response.challenge)
    else if (response.hello) this.#greeted(connection, request, response.hello)
    else if (response.provenHello) this.#provenTo(connection, request, response.provenHello)
    else {
      check(session !== undefined, 'nothing is granted before a client has shown who it is')
      if (response.allocate) this.#allocated(session, response.allocate.slabs ?? [])
      if (response.free) this.#gaveBack(session, (request?.free?.ids ?? []).map(Number))
      if (response.list) this.#listed(session, Number(request?.list?.after), response.list.slabs ?? [])
      if (response.query) this.#told(session, response.query)
      if (response.goodbye) session.over = true
    }
  }

  #refused({ code, message }: control.Failure.$Properties): void {
    check(/^E[A-Z]+$/.test(code ?? ''), 'a refusal has the name of an errno')
    check(code !== 'EIO', `a refusal is expected: ${message}`)
    check(/^[\x20-\x7e]{1,300}$/.test(message ?? ''), 'a refusal has a sentence')
  }

  #challenged(
    connection: Connection,
    request: control.Request | undefined,
    bytes: Uint8Array,
    { nonce }: control.Challenge.$Properties,
  ): void {
    check(
      this.#keys && connection.session === undefined,
      'a challenge is for a client that must prove something',
    )
    check(nonce?.length === NONCE_BYTES, 'a challenge is one')
    const hello = request?.hello ?? undefined
    connection.hello = hello
    connection.transcript = {
      serverNonce: nonce,
      clientNonce: hello?.nonce ?? Buffer.alloc(0),
      tenant: hello?.tenant ?? '',
      keyId: hello?.keyId ?? '',
      bound: hello?.version === UNBOUND_VERSION ? undefined : boundTo(connection.channelBinding, bytes),
    }
  }

  #provenTo(
    connection: Connection,
    request: control.Request | undefined,
    { reply, mac }: control.ProvenHello.$Properties,
  ): void {
    const { transcript } = connection
    check(reply != null && transcript?.bound !== undefined, 'who proves nothing gets no proof')
    const right = macOf(this.#secret, 'server', transcript, reply)
    check(Buffer.compare(mac ?? Buffer.alloc(0), right) === 0, 'the server proves what it says')
    const hello = control.HelloReply.decode(reply)
    check(hello.version === PROTOCOL_VERSION && hello.mac.length === 0, 'and of its version')
    this.#greeted(connection, request, { ...hello, mac: mac ?? null })
  }

  #greeted(
    connection: Connection,
    request: control.Request | undefined,
    { session, token, mac, resumed, lingerMs }: control.HelloReply.$Properties,
  ): void {
    check(connection.session === undefined, 'a client is greeted once')
    check(!this.#keys || connection.proved, 'nobody is greeted without a proof')
    check(token?.length === 16, 'a session has a token')
    check((mac?.length === 32) === this.#keys, 'the server proves itself')
    const hello = this.#keys ? connection.hello : request?.hello
    check((lingerMs ?? 0) <= Math.min(this.#maxLingerMs, hello?.lingerMs ?? 0), 'no more than was asked for')
    const id = Number(session)
    const tenant = this.#tenants.find(hello?.tenant ?? '')?.name
    check(tenant !== undefined, 'a tenant is known')
    let known = this.sessions.find((each) => each.id === id)
    check((known !== undefined) === (resumed === true), 'a session that is not resumed is a new one')
    if (known === undefined) {
      known = { id, token, tenant, connection, over: false }
      this.sessions.push(known)
    } else {
      check(Number(hello?.resume?.session) === id, 'the session is the one that was named')
      check(Buffer.compare(hello?.resume?.token ?? Buffer.alloc(0), token) === 0, 'its token was known')
      check(known.tenant === tenant, "the session is the tenant's")
      check(!known.over, 'what has ended is not resumed')
      check(!known.connection.open, 'a session has one connection')
      known.connection = connection
    }
    connection.session = known
  }

  #allocated(session: Session, slabs: readonly control.Slab.$Properties[]): void {
    for (const { id, address, length } of slabs) {
      const at = Number(address)
      check(Number(length) === this.#slabSize && at > 0, 'a slab is memory')
      check(!this.#slabs.has(Number(id)), 'an id is used once')
      for (const { address: other, of } of this.#slabs.values())
        check(of.over || !of.connection.open || Math.abs(other - at) >= this.#slabSize, 'memory is lent once')
      if (!this.#freed.has(Number(id))) this.#slabs.set(Number(id), { address: at, of: session })
    }
  }

  #gaveBack(session: Session, ids: readonly number[]): void {
    for (const id of new Set(ids)) {
      // Nothing is known yet of a slab whose Allocate is being answered.
      check((this.#slabs.get(id)?.of ?? session) === session, 'a client frees its own')
      this.#slabs.delete(id)
      this.#freed.add(id)
    }
  }

  #listed(session: Session, after: number, slabs: readonly control.Slab.$Properties[]): void {
    let last = after
    for (const { id } of slabs) {
      check(Number(id) > last, 'a list ascends')
      last = Number(id)
      check((this.#slabs.get(last)?.of ?? session) === session, 'a client hears of its own slabs')
    }
  }

  #told(session: Session, { tenants, sessionList }: control.QueryReply.$Properties): void {
    if (this.#tenants.find(session.tenant)?.operator) return
    for (const { name } of tenants ?? []) check(name === session.tenant, 'a tenant hears of itself')
    for (const { tenant } of sessionList ?? [])
      check(tenant === session.tenant, 'a tenant hears of its sessions')
  }
}
