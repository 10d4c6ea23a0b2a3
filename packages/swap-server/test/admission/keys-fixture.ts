// A server with keys for each case, and its clients: those with a key, and a stranger who says what it likes.
import { randomBytes } from 'node:crypto'
import { RingConnection } from '@rdmakit/ring-transport'
import { afterEach, beforeEach } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type Key, type SessionOptions, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { control, PROTOCOL_VERSION } from '../../src/protocol/messages.js'
import { boundTo, NONCE_BYTES } from '../../src/protocol/proof.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

export const MIB = 2 ** 20
export const key: Key = { id: '2026-11', secret: randomBytes(32) }
export const operatorKey: Key = { id: '1', secret: randomBytes(16) }
export const written = ({ id, secret }: Key) => ({ id, secret: secret.toString('hex') })
export const prod = (...keys: Key[]) => ({ name: 'prod', keys: keys.map(written) })
export const operator = { name: 'ops', keys: [written(operatorKey)], operator: true }

let sockets = 0
export let file: OperatorFile
export let server: SwapServer
export let uri: string
export const ends: (() => unknown)[] = []

/** Registers calls for the end of the case, the last first. */
export type Finished = (end: () => Promise<void> | void) => unknown
export const finished: Finished = (end) => ends.push(end)

/** Each case of the group has a server of its own, and a file of tenants. */
export function serveEach(): void {
  beforeEach(async () => {
    file = new OperatorFile({ tenants: [prod(key), operator] })
    ends.push(() => file[Symbol.dispose]())
    server = new SwapServer({
      memory: 8 * MIB,
      slabSize: MIB,
      tenants: Tenants.load(file.path),
      greetingTimeout: 60_000,
    })
    ends.push(() => server.close())
    uri = await server.listen(address())
  })

  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })
}

export const address = () => `shm:///tmp/rdmakit-trust-${process.pid}-${++sockets}.sock`

export async function session(
  options: SessionOptions,
  at = uri,
  over = finished,
): Promise<SwapServerSession> {
  const made = await SwapServerSession.open([at], options)
  over(() => made.close())
  return made
}

/** A client that says what it likes. */
export async function stranger(at = uri, over = finished) {
  const connection = await RingConnection.connect(at, { capacity: 2 ** 16 })
  over(() => connection.close())
  let ended = false
  void connection.closed.then(() => {
    ended = true
  })
  const ask = async (request: control.Request.$Properties) =>
    control.Response.decode(await connection.request(control.Request.encode(request).finish()))
  return {
    channelBinding: connection.channelBinding,
    ask,
    ends: () => eventually(() => ended),
    ended: () => ended,
  }
}

/** Hello of `tenant`, up to the server's challenge. */
export async function challenged(
  tenant: string,
  keyId: string,
  nonce: Uint8Array = randomBytes(NONCE_BYTES),
  at = uri,
  over = finished,
) {
  const client = await stranger(at, over)
  const request = { hello: { version: PROTOCOL_VERSION, tenant, keyId, nonce } }
  const { challenge } = await client.ask(request)
  const bound = boundTo(client.channelBinding, control.Request.encode(request).finish())
  const serverNonce = challenge?.nonce ?? new Uint8Array()
  return { ...client, transcript: { serverNonce, clientNonce: nonce, tenant, keyId, bound } }
}
