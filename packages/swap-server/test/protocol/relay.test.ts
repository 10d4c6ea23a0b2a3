// A proof of a key is good on the connection that it was made for, and on no other: docs/page-service/trust.md.
import { randomBytes } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type Key, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { control, PROTOCOL_VERSION, UNBOUND_VERSION } from '../../src/protocol/messages.js'
import { boundTo, macOf, type Transcript } from '../../src/protocol/proof.js'
import { impostor } from '../admission/impostor.js'
import { ADDRESSES, MIB } from '../fixture.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'
import { relay } from './relay.js'

const key: Key = { id: 'k1', secret: randomBytes(32) }
const tenant = (name: string, operator: boolean) => ({
  name,
  operator,
  keys: [{ id: key.id, secret: key.secret.toString('hex') }],
})
const prod = { tenant: 'prod', key, linger: 60_000 }

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

const open = async (uri: string, options = prod): Promise<SwapServerSession> => {
  const session = await SwapServerSession.open([uri], options)
  ends.push(() => session.close())
  return session
}

describe.each(Object.entries(ADDRESSES))('over %s a relay between a client and a server', (_, address) => {
  let server: SwapServer
  let uri: string
  beforeEach(async () => {
    const file = new OperatorFile({ tenants: [tenant('prod', false), tenant('ops', true)] })
    ends.push(() => file[Symbol.dispose]())
    server = new SwapServer({ memory: 4 * MIB, slabSize: MIB, tenants: Tenants.load(file.path) })
    ends.push(() => server.close())
    uri = await server.listen(address())
  })

  async function between(change?: Parameters<typeof relay>[2]) {
    const made = await relay(address(), uri, change)
    ends.push(() => made.close())
    return made
  }

  /** It has passed a proof on, and has nothing of it. */
  async function expectNothing(made: Awaited<ReturnType<typeof between>>): Promise<void> {
    expect(made.responses.map(({ body }) => body)).toEqual(['challenge', 'failure'])
    await eventually(() => server.sessions === 0)
  }

  it.each([
    ["a tenant's", 'prod'],
    ["an operator's", 'ops'],
  ])('gets no session of %s', async (_, name) => {
    const made = await between()
    await expect(open(made.uri, { ...prod, tenant: name })).rejects.toMatchObject({ code: 'EACCES' })
    await expectNothing(made)
  })

  it('gets no session that is taken up again, and takes none from who has it', async () => {
    const owner = await open(uri)
    const slabs = await owner.allocate(1)
    const made = await between()
    await expect(SwapServerSession.resume([made.uri], owner.identity, prod)).rejects.toMatchObject({
      code: 'EACCES',
    })
    expect(made.responses.map(({ body }) => body)).toEqual(['challenge', 'failure'])
    expect(await owner.list()).toEqual(slabs)
    expect(owner.over).toBeUndefined()
  })

  it('cannot say that the client is an older one, whose proof it could pass on', async () => {
    const made = await between(({ hello }) => {
      if (hello) hello.version = UNBOUND_VERSION
    })
    await expect(open(made.uri)).rejects.toMatchObject({ code: 'EACCES' })
    await expectNothing(made)
  })

  it('changes nothing in what a client without a key has', async () => {
    const own = new SwapServer({ memory: MIB, slabSize: MIB })
    ends.push(() => own.close())
    const made = await relay(address(), await own.listen(address()))
    ends.push(() => made.close())
    const session = await SwapServerSession.open([made.uri])
    ends.push(() => session.close())
    expect(await session.allocate(1)).toHaveLength(1)
  })
})

describe.each(Object.entries(ADDRESSES))('over %s a client takes the proof of its server', (_, address) => {
  const reply = control.HelloReply.encode({
    version: PROTOCOL_VERSION,
    epoch: '0123456789abcdef',
    token: randomBytes(16),
    slabSize: MIB,
    totalSlabs: 1,
    freeSlabs: 1,
    session: 5,
  }).finish()
  type Proof = (
    transcript: Transcript,
    binding: Uint8Array,
    hello: Uint8Array,
  ) => control.Response.$Properties
  const proven = (transcript: Transcript, said = reply) => ({
    provenHello: { reply: said, mac: macOf(key.secret, 'server', transcript, reply) },
  })

  /** A server that has the key, and proves it by `proof`. */
  async function openAt(proof: Proof): Promise<SwapServerSession> {
    const nonce = randomBytes(32)
    let transcript: Transcript | undefined
    let hello: Uint8Array = new Uint8Array()
    const server = await impostor(address(), (request, connection, received) => {
      if (request.hello) {
        hello = received
        transcript = {
          serverNonce: nonce,
          clientNonce: request.hello.nonce ?? new Uint8Array(),
          tenant: 'prod',
          keyId: key.id,
          bound: boundTo(connection.channelBinding, received),
        }
        return { challenge: { nonce } }
      }
      return request.proof && transcript ? proof(transcript, connection.channelBinding, hello) : {}
    })
    ends.push(() => server.close())
    const session = await SwapServerSession.open([server.uri], { ...prod, heartbeatInterval: 60_000 })
    ends.push(() => session.leave())
    return session
  }

  it('that is for this connection and these words', async () => {
    expect((await openAt((transcript) => proven(transcript))).epoch).toBe('0123456789abcdef')
  })

  it.each<[string, Proof]>([
    [
      'for another connection',
      (transcript, _, hello) => proven({ ...transcript, bound: boundTo(randomBytes(32), hello) }),
    ],
    [
      'for another hello on this one',
      (transcript, binding) => proven({ ...transcript, bound: boundTo(binding, randomBytes(100)) }),
    ],
    [
      'for another reply',
      (transcript) => {
        const { totalSlabs, ...said } = control.HelloReply.decode(reply)
        return proven(transcript, control.HelloReply.encode({ ...said, totalSlabs: totalSlabs + 1 }).finish())
      },
    ],
    [
      'as version 1 had it',
      (transcript) => {
        const mac = macOf(key.secret, 'server', { ...transcript, bound: undefined }, 5)
        return { hello: { ...control.HelloReply.decode(reply), version: UNBOUND_VERSION, mac } }
      },
    ],
  ])('and none %s', async (_, proof) => {
    await expect(openAt(proof)).rejects.toMatchObject({ code: 'EACCES' })
  })
})
