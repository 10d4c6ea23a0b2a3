// An unauthenticated client gets an answer, and no resource of the device.
import { randomBytes } from 'node:crypto'
import type { Context } from '@rdmakit/verbs'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Key, SwapServer, Tenants } from '../../src/index.js'
import type { ControlConnection } from '../../src/protocol/control-connection.js'
import { control, PROTOCOL_VERSION } from '../../src/protocol/messages.js'
import { boundTo, macOf, NONCE_BYTES } from '../../src/protocol/proof.js'
import { MIB } from '../fixture.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

const key: Key = { id: 'k1', secret: randomBytes(32) }
const prod = { name: 'prod', keys: [{ id: key.id, secret: key.secret.toString('hex') }] }
const channelBinding = randomBytes(32)

/** bytes */
const CONTROL_MEMORY = 100

let server: SwapServer
let file: OperatorFile
/** protection domains */
let made: number
/** those that there are while a client has proved nothing */
let before: number
let device: Context

beforeEach(() => {
  file = new OperatorFile({ tenants: [prod] })
  server = new SwapServer({
    memory: MIB,
    slabSize: MIB,
    tenants: Tenants.load(file.path),
    maxLinger: 60_000,
    controlMemory: CONTROL_MEMORY,
  })
  made = 0
  before = 0
  const allocateProtectionDomain = () => {
    made++
    return { close: () => {} }
  }
  device = { deviceName: 'none', allocateProtectionDomain } as unknown as Context
})
afterEach(async () => {
  await server.close()
  file[Symbol.dispose]()
})

/** A control connection without a device. */
class Connection implements ControlConnection {
  readonly context = device
  readonly peerUri = 'test://client'
  readonly channelBinding = channelBinding
  memory = 1
  readonly closed: Promise<Error | undefined>
  #answer: Parameters<ControlConnection['handle']>[0] = () => new Uint8Array()
  #end: (reason: Error | undefined) => void = () => {}

  constructor() {
    this.closed = new Promise((resolve) => {
      this.#end = resolve
    })
    server.listeners.admit(this)
  }

  handle(answer: Parameters<ControlConnection['handle']>[0]): void {
    this.#answer = answer
  }

  request(): Promise<Uint8Array> {
    return Promise.reject(new Error('the client does not answer'))
  }

  async close(): Promise<void> {
    this.#end(undefined)
  }

  async ask(request: Uint8Array | control.Request.$Properties): Promise<control.Response> {
    const data = request instanceof Uint8Array ? request : control.Request.encode(request).finish()
    return control.Response.decode(await this.#answer({ data }))
  }

  /** Says hello, and proves with `secret`. @returns what comes of it */
  async enter(
    secret: Uint8Array,
    resume?: { session: number; token: Uint8Array },
  ): Promise<control.Response> {
    const nonce = randomBytes(NONCE_BYTES)
    const said = { version: PROTOCOL_VERSION, tenant: 'prod', keyId: key.id, nonce, lingerMs: 60_000 }
    const hello = control.Request.encode({ hello: resume ? { ...said, resume } : said }).finish()
    const { challenge } = await this.ask(hello)
    expect([challenge?.nonce?.length, made]).toEqual([NONCE_BYTES, before])
    const transcript = {
      serverNonce: challenge?.nonce ?? new Uint8Array(),
      clientNonce: nonce,
      tenant: 'prod',
      keyId: key.id,
      bound: boundTo(channelBinding, hello),
    }
    return this.ask({ proof: { mac: macOf(secret, 'client', transcript, resume?.session ?? 0) } })
  }
}

it('a protection domain is made for a client that has proved who it is, and for no other', async () => {
  expect((await new Connection().ask({ query: {} })).failure?.code).toBe('EPROTO')
  expect((await new Connection().ask({ hello: { version: 99 } })).failure?.code).toBe('EPROTO')
  expect((await new Connection().enter(randomBytes(32))).failure?.code).toBe('EACCES')
  expect([made, server.sessions]).toEqual([0, 0])
  expect((await new Connection().enter(key.secret)).provenHello).toBeDefined()
  expect([made, server.sessions]).toEqual([1, 1])
})

it('a client that comes back has the protection domain that its session has', async () => {
  const first = new Connection()
  const { provenHello } = await first.enter(key.secret)
  const { session, token } = control.HelloReply.decode(provenHello?.reply ?? new Uint8Array())
  before = 1
  const resume = { session: Number(session), token: token ?? new Uint8Array() }
  const again = await new Connection().enter(key.secret, resume)
  expect(control.HelloReply.decode(again.provenHello?.reply ?? new Uint8Array()).resumed).toBe(true)
  expect([made, server.sessions]).toEqual([1, 1])
  expect((await first.ask({ query: {} })).failure?.code).toBe('ECANCELED')
})

/** A client with a session, whose connection takes so many bytes. */
async function entered(memory: number): Promise<{ connection: Connection; refusal: string | undefined }> {
  const connection = new Connection()
  connection.memory = memory
  before = made
  const { failure } = await connection.enter(key.secret)
  return { connection, refusal: failure?.code ?? undefined }
}

it('the control connections of a tenant have so much memory of the server, and then there are no more', async () => {
  const connections = [await entered(60), await entered(41), await entered(40)]
  expect(connections.map(({ refusal }) => refusal)).toEqual([undefined, 'EUSERS', undefined])
  expect(server.sessions).toBe(2)
  await connections[0]?.connection.close()
  await Promise.resolve()
  expect([(await entered(60)).refusal, (await entered(1)).refusal]).toEqual([undefined, 'EUSERS'])
})

it('where that becomes too much, the connection that asks and has more than its part ends; its session lingers', async () => {
  const connections = [(await entered(1)).connection, (await entered(1)).connection]
  const [greedy, modest] = connections as [Connection, Connection]
  const other = (await entered(40)).connection
  for (const [one, memory] of [
    [greedy, 40],
    [modest, 30],
    [modest, 30],
  ] as const) {
    one.memory = memory
    expect((await one.ask({ query: {} })).failure).toBeNull()
  }
  await greedy.ask({ query: {} })
  await greedy.closed
  await Promise.resolve()
  expect([server.sessions, server.lingeringSessions]).toEqual([3, 1])
  for (const one of [modest, other]) expect((await one.ask({ query: {} })).failure).toBeNull()
  // What it had is free.
  expect((await entered(30)).refusal).toBeUndefined()
})
