// The control plane's server, fed with whatever clients may send. The bytes of an input are a script: connections
// come and go, say what they like or something that makes sense, and time passes. Server, sessions and slabs are
// the real ones; only the ring below the connections is not there. Whatever the clients do, each answer is
// well-formed, nothing is granted before a client has shown who it is, and when they are gone all memory is back.
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ProtectionDomain } from '@rdmakit/verbs'
import { pino } from 'pino'
import { SwapServer, Tenants } from '../../packages/swap-server/dist/index.js'
import type { ControlConnection } from '../../packages/swap-server/dist/protocol/control-connection.js'
import {
  control,
  PROTOCOL_VERSION,
  UNBOUND_VERSION,
} from '../../packages/swap-server/dist/protocol/messages.js'
import {
  boundTo,
  macOf,
  NONCE_BYTES,
  type Transcript,
} from '../../packages/swap-server/dist/protocol/proof.js'
import { Clock, check, context, Input, settle } from './control_world.js'

const MIB = 2 ** 20
const SLABS = 6
const MAX_CONNECTIONS = 6
const MAX_SESSIONS = 3
const MAX_STEPS = 64
const MAX_LINGER_MS = 300_000
/** Half of a ring of the usual size. */
const MAX_ANSWER = 2 ** 19

const secret = Buffer.alloc(32, 7)
const key = { id: 'k', secret: secret.toString('hex') }
const spot = { name: 'spot', class: 'opportunistic', quota: `${2 * MIB}`, bytesPerSecond: 1000 }
const KINDS = [
  { keys: false, tenants: Tenants.open() },
  { keys: false, tenants: load([{ name: 'default', operator: true }, spot]) },
  {
    keys: true,
    tenants: load([
      { name: 'prod', keys: [key], operator: true },
      { ...spot, keys: [key] },
    ]),
  },
]
const NAMES = ['', 'spot', 'prod', 'default', 'nobody']

function load(tenants: unknown): Tenants {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-fuzz-'))
  try {
    const path = join(folder, 'tenants.json')
    writeFileSync(path, JSON.stringify({ tenants }), { mode: 0o600 })
    return Tenants.load(path)
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** Errors are what the program does not expect of itself; whatever clients do is no error. */
const log = pino(
  { level: 'info' },
  {
    write: (line: string) => {
      if (line.includes('"level":50')) unexpected.push(line)
    },
  },
)
const unexpected: string[] = []
const clock = new Clock()

const domains = new Set<ProtectionDomain>()
const allocate = context.allocateProtectionDomain
context.allocateProtectionDomain = () => {
  const domain = allocate.call(context)
  domains.add(domain)
  return domain
}

/** A session, as its clients know it. */
interface Session {
  readonly id: number
  readonly token: Uint8Array
  readonly tenant: string
  connection: Connection
  over: boolean
}

/** One connection, the server's end of it, and what its client knows. */
class Connection implements ControlConnection {
  readonly context = context
  readonly peerUri = 'iwarp://192.0.2.1:7'
  readonly channelBinding = Buffer.alloc(32, 3)
  readonly closed: Promise<undefined>
  /** what the client answers when the server asks */
  readonly replies: Buffer[] = []
  open = true
  /** the Hello that got a challenge, and what both ends know since */
  hello: control.Hello.$Properties | undefined
  transcript: Transcript | undefined
  /** It has sent the one proof that is right. */
  proved = false
  session: Session | undefined
  #answer: ((request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>) | undefined
  #end: (reason: undefined) => void = () => {}

  constructor() {
    this.closed = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  handle(answer: (request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>): void {
    this.#answer = answer
  }

  async request(bytes: Uint8Array): Promise<Uint8Array> {
    const { body } = control.ServerRequest.decode(bytes)
    check(body !== undefined, 'the server asks nothing')
    const reply = this.replies.shift()
    if (reply === undefined || !this.open) throw new Error('no answer')
    return reply
  }

  async close(): Promise<void> {
    this.open = false
    this.#end(undefined)
  }

  ask(bytes: Uint8Array): Uint8Array | Promise<Uint8Array> {
    check(this.#answer !== undefined, 'a session answers its connection')
    return this.#answer({ data: bytes })
  }
}

/** One input: a server and its clients. */
class World {
  readonly #keys: boolean
  readonly #server: SwapServer
  readonly #tenants: Tenants
  readonly #connections: Connection[] = []
  readonly #running = new Set<Promise<void>>()
  /** slabs by id: where they begin, and who has them */
  readonly #slabs = new Map<number, { address: number; of: Session }>()
  readonly #freed = new Set<number>()
  readonly #sessions: Session[] = []
  #failure: unknown

  constructor(kind: number) {
    const { keys, tenants } = KINDS[kind % KINDS.length] as (typeof KINDS)[number]
    this.#keys = keys
    this.#tenants = tenants
    this.#server = new SwapServer({
      memory: SLABS * MIB,
      slabSize: MIB,
      bandwidth: 10_000,
      maxLinger: MAX_LINGER_MS,
      maxSessions: MAX_SESSIONS,
      tenants,
      log,
    })
  }

  connect(): Connection {
    const connection = new Connection()
    this.#connections.push(connection)
    this.#server.admit(connection)
    return connection
  }

  async play(input: Input): Promise<void> {
    let current = this.connect()
    for (let step = 0; step < MAX_STEPS && !input.empty; step++) {
      const what = input.byte()
      switch (what & 0x0f) {
        case 1:
          this.#say(current, this.#hello(input))
          break
        case 13:
          this.#say(current, this.#hello(input, this.#sessions[input.byte() % (this.#sessions.length || 1)]))
          break
        case 14:
          this.#say(current, { list: { after: input.byte() } })
          break
        case 15:
          this.#say(current, { goodbye: {} })
          break
        case 2:
          this.#say(current, { proof: { mac: this.#prove(current, input.byte()) } })
          break
        case 3:
          this.#say(current, { allocate: { count: input.byte() } })
          break
        case 4:
          this.#say(current, { free: { ids: [...input.take(input.byte() & 0x0f)] } })
          break
        case 5:
          this.#say(current, { heartbeat: { bytes: input.two(), operations: input.byte() } })
          break
        case 6:
          this.#say(current, { query: {} })
          break
        case 7:
          if (this.#connections.length < MAX_CONNECTIONS) current = this.connect()
          break
        case 8:
          current = this.#connections[input.byte() % this.#connections.length] as Connection
          break
        case 9:
          await current.close()
          break
        case 10:
          clock.pass(input.two() * 16)
          break
        case 11:
          current.replies.push(input.message())
          break
        case 12:
          this.#server.lending.reclaim.want(input.byte())
          break
        default:
          this.#send(current, input.message())
      }
      // Without it what is being answered and what comes next meet.
      if ((what & 0x10) === 0) await this.#finish()
    }
    await this.#end()
  }

  #hello(input: Input, session?: Session): control.Request.$Properties {
    const tenant = NAMES[input.byte() % NAMES.length] as string
    const patience = input.byte()
    const hello = {
      version: (patience & 1) === 0 ? UNBOUND_VERSION : PROTOCOL_VERSION,
      client: 'fuzz',
      tenant,
      keyId: this.#keys ? key.id : '',
      nonce: randomBytes(NONCE_BYTES),
      lingerMs: patience * 2000,
    }
    return {
      hello:
        session === undefined ? hello : { ...hello, resume: { session: session.id, token: session.token } },
    }
  }

  /** @param flip which of its bytes is wrong; from 32 on none is */
  #prove(connection: Connection, flip: number): Uint8Array {
    const { transcript, hello } = connection
    if (transcript === undefined || hello === undefined) return Buffer.alloc(32)
    const session = Number(hello.resume?.session ?? 0)
    const mac = macOf(secret, 'client', transcript, Number.isSafeInteger(session) ? session : 0)
    if (flip < mac.length) mac.writeUInt8(mac.readUInt8(flip) ^ 1, flip)
    else connection.proved = true
    return mac
  }

  #say(connection: Connection, request: control.Request.$Properties): void {
    this.#send(connection, control.Request.encode(request).finish())
  }

  #send(connection: Connection, bytes: Uint8Array): void {
    if (!connection.open) return
    const running = this.#exchange(connection, bytes)
      .catch((failure) => {
        this.#failure ??= failure
      })
      .finally(() => this.#running.delete(running))
    this.#running.add(running)
  }

  async #exchange(connection: Connection, bytes: Uint8Array): Promise<void> {
    let request: control.Request | undefined
    try {
      request = control.Request.decode(bytes)
    } catch {
      // Then there is no more to know than that it must be refused.
    }
    const answer = await connection.ask(bytes)
    check(answer.length <= MAX_ANSWER, 'an answer fits into a ring')
    const response = control.Response.decode(answer)
    check(response.body !== undefined, 'an answer says something')
    check(request?.body !== undefined || response.failure, 'nonsense is refused')
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
    const right = macOf(secret, 'server', transcript, reply)
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
    check((lingerMs ?? 0) <= Math.min(MAX_LINGER_MS, hello?.lingerMs ?? 0), 'no more than was asked for')
    const id = Number(session)
    const tenant = this.#tenants.find(hello?.tenant ?? '')?.name
    check(tenant !== undefined, 'a tenant is known')
    let known = this.#sessions.find((each) => each.id === id)
    check((known !== undefined) === (resumed === true), 'a session that is not resumed is a new one')
    if (known === undefined) {
      known = { id, token, tenant, connection, over: false }
      this.#sessions.push(known)
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
      check(Number(length) === MIB && at > 0, 'a slab is memory')
      check(!this.#slabs.has(Number(id)), 'an id is used once')
      for (const { address: other, of } of this.#slabs.values())
        check(of.over || !of.connection.open || Math.abs(other - at) >= MIB, 'memory is lent once')
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

  async #finish(): Promise<void> {
    await Promise.all(this.#running)
    await settle()
    if (this.#failure !== undefined) throw this.#failure
    const line = unexpected.shift()
    check(line === undefined, `an error: ${line}`)
  }

  async #end(): Promise<void> {
    for (const connection of this.#connections) await connection.close()
    await this.#finish()
    clock.pass(MAX_LINGER_MS + 1)
    await this.#finish()
    const { store, lending, sessions } = this.#server
    check(sessions === 0, 'sessions end with their connections, or when nobody resumes them')
    check(store.free === SLABS, 'all slabs are back')
    check(lending.free === SLABS, 'nothing is lent any more')
    for (const { name } of this.#tenants.all) check(lending.taken(name) === 0, 'no tenant has anything')
    for (const domain of domains) check(domain.closed, 'protection domains are closed')
    domains.clear()
    await this.#server.close()
    check(clock.timers === 0, 'no timer is left')
  }
}

export async function fuzz(bytes: Buffer): Promise<void> {
  const input = new Input(bytes)
  await new World(input.byte()).play(input)
}
