// Clients and servers of different versions of the control protocol: docs/page-service/trust.md.
import { randomBytes } from 'node:crypto'
import { exitStatusOf } from '@rdmakit/operator-kit'
import { RingConnection } from '@rdmakit/ring-transport'
import { afterEach, expect, it } from 'vitest'
import { type Key, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { control, PROTOCOL_VERSION, UNBOUND_VERSION } from '../../src/protocol/messages.js'
import { boundTo, macOf, type Transcript } from '../../src/protocol/proof.js'
import { meaningOfRefusal } from '../../src/protocol/refusal.js'
import { impostor } from '../admission/impostor.js'
import { ADDRESSES, MIB } from '../fixture.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

const key: Key = { id: 'k1', secret: randomBytes(32) }
const tenants = { tenants: [{ name: 'prod', keys: [{ id: key.id, secret: key.secret.toString('hex') }] }] }

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

async function serve(file?: OperatorFile): Promise<string> {
  const server = new SwapServer({
    memory: MIB,
    slabSize: MIB,
    ...(file && { tenants: Tenants.load(file.path) }),
  })
  ends.push(() => server.close())
  return await server.listen(ADDRESSES.iwarp())
}

/** A client that says `version`. */
async function client(uri: string, version: number) {
  const connection = await RingConnection.connect(uri)
  ends.push(() => connection.close())
  const ask = async (bytes: Uint8Array) => control.Response.decode(await connection.request(bytes))
  const clientNonce = randomBytes(32)
  const hello = { version, tenant: 'prod', keyId: key.id, nonce: clientNonce }
  const request = control.Request.encode({ hello }).finish()
  const { challenge, failure } = await ask(request)
  const transcript = (bound: boolean): Transcript => ({
    serverNonce: challenge?.nonce ?? new Uint8Array(),
    clientNonce,
    tenant: 'prod',
    keyId: key.id,
    bound: bound ? boundTo(connection.channelBinding, request) : undefined,
  })
  const prove = async (bound: boolean) => {
    const proof = { mac: macOf(key.secret, 'client', transcript(bound), 0) }
    return await ask(control.Request.encode({ proof }).finish())
  }
  return { failure, transcript, prove }
}

it('an older client with a key gets a session, with a proof that it knows', async () => {
  using file = new OperatorFile(tenants)
  const old = await client(await serve(file), UNBOUND_VERSION)
  const { hello } = await old.prove(false)
  expect(hello).toMatchObject({ version: UNBOUND_VERSION })
  const session = Number(hello?.session)
  const right = macOf(key.secret, 'server', old.transcript(false), session)
  expect(Buffer.compare(hello?.mac ?? Buffer.alloc(0), right)).toBe(0)
})

it('the proof of one version is none of the other', async () => {
  using file = new OperatorFile(tenants)
  const uri = await serve(file)
  for (const [version, bound] of [
    [UNBOUND_VERSION, true],
    [PROTOCOL_VERSION, false],
  ] as const)
    expect((await (await client(uri, version)).prove(bound)).failure?.code).toBe('EACCES')
})

it('a client of a version to come is told which ones the server speaks', async () => {
  using file = new OperatorFile(tenants)
  const { failure } = await client(await serve(file), PROTOCOL_VERSION + 1)
  expect(failure).toMatchObject({
    code: 'EPROTO',
    message: 'the client speaks version 3 of the control protocol, this server versions 1 and 2',
  })
})

/** A server before version 2: it accepts only its own version. */
async function older(): Promise<string> {
  const server = await impostor(ADDRESSES.iwarp(), ({ hello }) => {
    const version = hello?.version
    if (version !== 1) {
      const message = `the client speaks version ${version} of the control protocol, this server version 1`
      return { failure: { code: 'EPROTO', message } }
    }
    return {
      hello: {
        version: 1,
        epoch: '0123456789abcdef',
        token: randomBytes(16),
        slabSize: MIB,
        totalSlabs: 1,
        freeSlabs: 1,
        session: 1,
      },
    }
  })
  ends.push(() => server.close())
  return server.uri
}

it('a client without a key gets on with an older server', async () => {
  const session = await SwapServerSession.open([await older()], { heartbeatInterval: 60_000 })
  ends.push(() => session.leave())
  expect(session.epoch).toBe('0123456789abcdef')
})

it('a client with a key says which version an older server lacks, and gives nothing up', async () => {
  const options = { tenant: 'prod', key }
  const identity = { epoch: '0123456789abcdef', session: 1, token: randomBytes(16) }
  const refusal = await SwapServerSession.resume([await older()], identity, options).catch((reason) => reason)
  expect(refusal).toMatchObject({
    code: 'EPROTO',
    message: 'the client speaks version 2 of the control protocol, this server version 1',
  })
  expect(meaningOfRefusal('EPROTO')).toBe('forbidden')
  expect(exitStatusOf(refusal)).toBe(69)
})
