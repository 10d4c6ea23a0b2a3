// Which clients get a session of a server with keys, and what an attacker gets instead: docs/page-service/trust.md.
import { randomBytes } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { ClientAuthentication } from '../../src/client/authentication.js'
import { type Key, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { control } from '../../src/protocol/messages.js'
import { boundTo, macOf, NONCE_BYTES } from '../../src/protocol/proof.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'
import { impostor } from './impostor.js'

import {
  address,
  challenged,
  ends,
  file,
  key,
  MIB,
  operator,
  operatorKey,
  prod,
  serveEach,
  server,
  session,
  stranger,
} from './keys-fixture.js'

describe('a server with keys', () => {
  serveEach()

  it('opens a session for whoever has a key of the tenant', async () => {
    const client = await session({ tenant: 'prod', key })
    expect(await client.allocate(2)).toHaveLength(2)
    expect(server.query('operator').sessionList).toMatchObject([{ tenant: 'prod', slabs: 2 }])
  })

  it('asks a client that has its key in a file for each session anew', async () => {
    let asked = 0
    const source = () => {
      asked++
      return key
    }
    await session({ tenant: 'prod', key: source })
    await session({ tenant: 'prod', key: source })
    expect(asked).toBe(2)
  })

  it('tells a tenant of its own sessions, and an operator of all', async () => {
    const client = await session({ tenant: 'prod', key })
    const asking = await session({ tenant: 'ops', key: operatorKey })
    expect((await client.query()).sessionList).toMatchObject([{ tenant: 'prod' }])
    expect((await asking.query()).sessionList).toHaveLength(2)
  })

  it('refuses a wrong secret, and the connection is over', async () => {
    await expect(
      session({ tenant: 'prod', key: { id: key.id, secret: randomBytes(32) } }),
    ).rejects.toMatchObject({ code: 'EACCES' })
    const client = await challenged('prod', key.id)
    expect((await client.ask({ proof: { mac: randomBytes(32) } })).failure?.code).toBe('EACCES')
    await client.ends()
    expect(server.sessions).toBe(0)
  })

  it("refuses another tenant's key", async () => {
    await expect(session({ tenant: 'prod', key: operatorKey })).rejects.toMatchObject({ code: 'EACCES' })
    await expect(session({ tenant: 'ops', key })).rejects.toMatchObject({ code: 'EACCES' })
  })

  it.each([
    ['an unknown tenant', 'nobody', key.id],
    ['an unknown key', 'prod', 'other'],
    ['the name of a property of objects', 'constructor', '__proto__'],
  ])('does not tell %s from a wrong secret', async (_, tenant, keyId) => {
    const answers = []
    for (const [name, id] of [
      ['prod', key.id],
      [tenant, keyId],
    ] as const) {
      const client = await challenged(name, id)
      expect(client.transcript.serverNonce).toHaveLength(NONCE_BYTES)
      const { failure } = await client.ask({ proof: { mac: randomBytes(32) } })
      await client.ends()
      answers.push([failure?.code, failure?.message])
    }
    expect(answers[0]).toEqual(answers[1])
  })

  it.each([
    ['no mac', {}],
    ['a short mac', { mac: randomBytes(31) }],
    ['a long mac', { mac: randomBytes(33) }],
  ])('refuses %s', async (_, proof) => {
    const client = await challenged('prod', key.id)
    expect((await client.ask({ proof })).failure?.code).toBe('EACCES')
    await client.ends()
  })

  it('wants a key of everybody', async () => {
    await expect(session({})).rejects.toMatchObject({ code: 'EACCES' })
    await expect(session({ tenant: 'prod' })).rejects.toThrow(/--key-file/)
  })

  it.each([
    ['no nonce', { tenant: 'prod', keyId: key.id }],
    ['a short nonce', { tenant: 'prod', keyId: key.id, nonce: randomBytes(31) }],
    ['a long name', { tenant: 'p'.repeat(65), keyId: key.id, nonce: randomBytes(32) }],
    ['another version', { version: 3, tenant: 'prod', keyId: key.id, nonce: randomBytes(32) }],
  ])('refuses a hello with %s', async (_, hello) => {
    const client = await stranger()
    expect((await client.ask({ hello: { version: 1, ...hello } })).failure?.code).toBe('EPROTO')
    await client.ends()
  })

  it.each([
    ['allocate', { allocate: { count: 1 } }],
    ['query', { query: {} }],
    ['heartbeat', { heartbeat: {} }],
    ['other hello', { hello: { version: 1, tenant: 'prod', keyId: key.id, nonce: randomBytes(32) } }],
  ])('answers no %s between challenge and proof', async (_, request) => {
    const client = await challenged('prod', key.id)
    expect((await client.ask(request)).failure?.code).toBe('EPROTO')
    await client.ends()
    expect(server.store.free).toBe(8)
  })
})

describe('a proof', () => {
  serveEach()

  it('is worth nothing when it is sent again', async () => {
    const first = await challenged('prod', key.id)
    const proof = { mac: macOf(key.secret, 'client', first.transcript, 0) }
    expect((await first.ask({ proof })).provenHello?.mac).toHaveLength(32)
    expect((await first.ask({ proof })).failure?.code).toBe('EPROTO')
    const second = await challenged('prod', key.id, first.transcript.clientNonce)
    expect(second.transcript.serverNonce).not.toEqual(first.transcript.serverNonce)
    expect((await second.ask({ proof })).failure?.code).toBe('EACCES')
  })

  it("is not the server's own, reflected", async () => {
    const client = await challenged('prod', key.id)
    const proof = { mac: macOf(key.secret, 'server', client.transcript, 0) }
    expect((await client.ask({ proof })).failure?.code).toBe('EACCES')
  })

  it('is about the session that the hello takes up', async () => {
    const client = await challenged('prod', key.id)
    const proof = { mac: macOf(key.secret, 'client', client.transcript, 77) }
    expect((await client.ask({ proof })).failure?.code).toBe('EACCES')
  })

  it('is of the names in the hello, however they are cut', () => {
    const nonces = { serverNonce: randomBytes(32), clientNonce: randomBytes(32), bound: undefined }
    const one = macOf(key.secret, 'client', { ...nonces, tenant: 'ab', keyId: 'c' }, 0)
    const other = macOf(key.secret, 'client', { ...nonces, tenant: 'a', keyId: 'bc' }, 0)
    expect(one.equals(other)).toBe(false)
  })

  it('comes too late when its key was taken out since the challenge', async () => {
    const client = await challenged('prod', key.id)
    file.write({ tenants: [operator] })
    server.reloadTenants()
    const proof = { mac: macOf(key.secret, 'client', client.transcript, 0) }
    expect((await client.ask({ proof })).failure?.code).toBe('EACCES')
  })
})

describe('a client with a key', () => {
  serveEach()

  async function pretend(answer: Parameters<typeof impostor>[1]): Promise<string> {
    const server = await impostor(address(), answer)
    ends.push(() => server.close())
    return server.uri
  }
  const hello = { version: 1, epoch: 'e', token: randomBytes(16), slabSize: MIB, totalSlabs: 1, freeSlabs: 1 }

  it('refuses a server without keys', async () => {
    const open = new SwapServer({ memory: MIB, slabSize: MIB })
    ends.push(() => open.close())
    const at = await open.listen(address())
    await expect(session({ tenant: 'default', key }, at)).rejects.toMatchObject({ code: 'EACCES' })
    await eventually(() => open.sessions === 0)
  })

  /** The two forms in which a server greets a client, with `mac` for its proof. */
  const greetings: [string, (mac: Uint8Array) => control.Response.$Properties][] = [
    ['of its version', (mac) => ({ provenHello: { reply: control.HelloReply.encode(hello).finish(), mac } })],
    ['of the version before', (mac) => ({ hello: { ...hello, mac } })],
  ]
  const challenge = () => ({ challenge: { nonce: randomBytes(32) } })

  it.each(greetings)('refuses a server %s that skips the challenge', async (_, greet) => {
    const at = await pretend(() => greet(randomBytes(32)))
    await expect(session({ tenant: 'prod', key }, at)).rejects.toMatchObject({ code: 'EACCES' })
  })

  it.each(greetings)('refuses a server %s that does not prove to have it', async (_, greet) => {
    for (const length of [0, 31, 32, 33]) {
      const at = await pretend(({ proof }) => (proof ? greet(randomBytes(length)) : challenge()))
      await expect(session({ tenant: 'prod', key }, at)).rejects.toMatchObject({ code: 'EACCES' })
    }
  })

  it.each(greetings)("refuses a server %s that sends the client's proof back", async (_, greet) => {
    const at = await pretend(({ proof }) => (proof ? greet(proof.mac ?? new Uint8Array()) : challenge()))
    await expect(session({ tenant: 'prod', key }, at)).rejects.toMatchObject({ code: 'EACCES' })
  })

  const gone = { epoch: '0123456789abcdef', session: 7, token: randomBytes(16) }
  const resume = (at: string) => SwapServerSession.resume([at], gone, { tenant: 'prod', key })

  it('believes the server that has it that a session is over', async () => {
    using tenants = new OperatorFile({ tenants: [prod(key)] })
    const owned = new SwapServer({ memory: MIB, slabSize: MIB, tenants: Tenants.load(tenants.path) })
    ends.push(() => owned.close())
    await expect(resume(await owned.listen(address()))).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it.each(['ENOENT', 'ESTALE'])(
    'believes nobody else %s, by which it would give its memory up',
    async (code) => {
      const failure = { code, message: 'there is no such session' }
      const challenge = { nonce: randomBytes(32) }
      for (const answer of [
        () => ({ failure }),
        () => ({ failure: { ...failure, mac: randomBytes(32) } }),
        ({ proof }: control.Request) => (proof ? { failure } : { challenge }),
        ({ proof }: control.Request) =>
          proof ? { failure: { ...failure, mac: randomBytes(32) } } : { challenge },
        ({ proof }: control.Request) =>
          proof ? { failure: { ...failure, mac: proof.mac ?? null } } : { challenge },
      ])
        await expect(resume(await pretend(answer))).rejects.toMatchObject({
          code: 'EBADMSG',
          message: expect.stringMatching(/^there is no such session; but the sender does not prove/),
        })
    },
  )

  it('believes a refusal of this session, with this code, and no other', () => {
    const nonce = randomBytes(NONCE_BYTES)
    const channel = randomBytes(32)
    const hello = randomBytes(100)
    const proving = new ClientAuthentication('prod', key, channel)
    proving.answer({ nonce }, hello, 7)
    const transcript = {
      serverNonce: nonce,
      clientNonce: proving.nonce,
      tenant: 'prod',
      keyId: key.id,
      bound: boundTo(channel, hello),
    }
    const mac = (code: string, at: number) => macOf(key.secret, `server refuses ${code}`, transcript, at)
    expect(proving.acceptsRefusal('ENOENT', mac('ENOENT', 7), 7)).toBe(true)
    expect(proving.acceptsRefusal('ESTALE', mac('ENOENT', 7), 7)).toBe(false)
    expect(proving.acceptsRefusal('ENOENT', mac('ENOENT', 8), 7)).toBe(false)
    expect(proving.acceptsRefusal('ENOENT', macOf(key.secret, 'server', transcript, 7), 7)).toBe(false)
  })

  it('answers no challenge that is too short, and not a second one', async () => {
    const short = await pretend(() => ({ challenge: { nonce: randomBytes(8) } }))
    await expect(session({ tenant: 'prod', key }, short)).rejects.toMatchObject({ code: 'EPROTO' })
    const proving = new ClientAuthentication('prod', key, randomBytes(32))
    const hello = randomBytes(100)
    expect(proving.answer({ nonce: randomBytes(32) }, hello, 0)).toBeDefined()
    expect(proving.answer({ nonce: randomBytes(32) }, hello, 0)).toBeUndefined()
  })

  it('tells a challenge to a client without a key as a failure', async () => {
    const at = await pretend(() => ({ challenge: { nonce: randomBytes(32) } }))
    await expect(session({}, at)).rejects.toMatchObject({ code: 'EPROTO' })
  })
})

describe('a reload', () => {
  serveEach()

  const next: Key = { id: '2027-01', secret: randomBytes(32) }
  const reload = (...tenants: unknown[]) => {
    file.write({ tenants })
    server.reloadTenants()
  }

  it('rotates a key without an interruption', async () => {
    const old = await session({ tenant: 'prod', key })
    reload(prod(key, next), operator)
    await session({ tenant: 'prod', key })
    await session({ tenant: 'prod', key: next })
    reload(prod(next), operator)
    await expect(session({ tenant: 'prod', key })).rejects.toMatchObject({ code: 'EACCES' })
    await session({ tenant: 'prod', key: next })
    expect(await old.allocate(1)).toHaveLength(1)
  })

  it('ends the sessions of a tenant that is gone, and only they', async () => {
    const gone = await session({ tenant: 'prod', key })
    const stays = await session({ tenant: 'ops', key: operatorKey })
    await gone.allocate(3)
    reload(operator)
    await gone.lost
    expect(server.store.free).toBe(8)
    expect((await stays.query()).sessionList).toHaveLength(1)
  })

  it('changes nothing when the file is wrong', async () => {
    file.write('{"tenants": [')
    expect(() => server.reloadTenants()).toThrow(/not JSON/)
    await session({ tenant: 'prod', key })
  })
})
