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
import {
  control,
  PROTOCOL_VERSION,
  UNBOUND_VERSION,
} from '../../packages/swap-server/dist/protocol/messages.js'
import { macOf, NONCE_BYTES } from '../../packages/swap-server/dist/protocol/proof.js'
import { Answers } from './control_answers.js'
import { Connection, type Session } from './control_clients.js'
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

/** One input: a server and its clients. */
class World {
  readonly #keys: boolean
  readonly #server: SwapServer
  readonly #tenants: Tenants
  readonly #connections: Connection[] = []
  readonly #running = new Set<Promise<void>>()
  readonly #answers: Answers
  #failure: unknown

  constructor(kind: number) {
    const { keys, tenants } = KINDS[kind % KINDS.length] as (typeof KINDS)[number]
    this.#keys = keys
    this.#tenants = tenants
    this.#answers = new Answers({ keys, secret, tenants, slabSize: MIB, maxLingerMs: MAX_LINGER_MS })
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
    this.#server.listeners.admit(connection)
    return connection
  }

  async play(input: Input): Promise<void> {
    const { sessions } = this.#answers
    let current = this.connect()
    for (let step = 0; step < MAX_STEPS && !input.empty; step++) {
      const what = input.byte()
      switch (what & 0x0f) {
        case 1:
          this.#say(current, this.#hello(input))
          break
        case 13:
          this.#say(current, this.#hello(input, sessions[input.byte() % (sessions.length || 1)]))
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
    this.#answers.take(connection, request, bytes, response)
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
