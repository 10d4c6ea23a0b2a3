// Server messages that a client accepts, and those that it refuses. The fuzz target control_client found each.
import { randomBytes } from 'node:crypto'
import { afterEach, describe, expect, it } from 'vitest'
import { SwapServer, SwapServerError, SwapServerSession } from '../../src/index.js'
import type { control } from '../../src/protocol/messages.js'
import { meaningOfRefusal } from '../../src/protocol/refusal.js'
import { impostor } from '../admission/impostor.js'

const MIB = 2 ** 20
const welcome = {
  version: 1,
  epoch: '0123456789abcdef',
  token: randomBytes(16),
  slabSize: MIB,
  totalSlabs: 8,
  freeSlabs: 8,
  session: 5,
}
const slab = (id: number) => ({ id, address: 2 ** 40 + id * MIB, rkey: id, length: MIB })

let sockets = 0
const address = () => `shm:///tmp/rdmakit-answers-${process.pid}-${++sockets}.sock`
const ends: (() => unknown)[] = []

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

/** A session with a server that answers hello with `hello` and the rest with `answer`. */
async function session(
  hello: control.Response.$Properties | Uint8Array,
  answer: (request: control.Request) => control.Response.$Properties | Uint8Array = () => ({}),
): Promise<SwapServerSession> {
  const server = await impostor(address(), (request) => (request.hello ? hello : answer(request)))
  ends.push(() => server.close())
  const made = await SwapServerSession.open([server.uri], { heartbeatInterval: 60_000 })
  ends.push(() => made.close())
  return made
}

describe('a client opens no session with a server', () => {
  it.each<[string, control.HelloReply.$Properties]>([
    ['of another version', { ...welcome, version: 3 }],
    ['without an epoch', { ...welcome, epoch: '' }],
    ['whose epoch is something else', { ...welcome, epoch: '\x1b[31m3456789abcdef' }],
    ['that gives a token that is too short', { ...welcome, token: randomBytes(8) }],
    ['that has slabs of no bytes', { ...welcome, slabSize: 0 }],
    ['that has slabs of an odd size', { ...welcome, slabSize: 3 * MIB }],
    ['that has slabs larger than there are', { ...welcome, slabSize: 2 ** 40 }],
    ['that has more slabs than can be counted', { ...welcome, totalSlabs: 2 ** 60 }],
    ['whose session has a name that cannot be kept', { ...welcome, session: 2 ** 60 }],
    ['that resumed one that the client did not name', { ...welcome, resumed: true }],
  ])('%s', async (_, hello) => {
    await expect(session({ hello })).rejects.toMatchObject({ name: 'SwapServerError', code: 'EPROTO' })
  })

  it('whose answer cannot be decoded', async () => {
    await expect(session(Buffer.from([0xff, 0xff]))).rejects.toMatchObject({
      name: 'SwapServerError',
      code: 'EPROTO',
    })
  })

  it('that refuses, and shows only what can be shown', async () => {
    const failure = { code: '\x1b]0;', message: `no\n\x1b[31m${'x'.repeat(1000)}` }
    const refused = await session({ failure }).catch((reason: unknown) => reason)
    expect(refused).toBeInstanceOf(SwapServerError)
    expect(refused).toMatchObject({ code: 'EPROTO', message: expect.stringMatching(/^no\?\?\[31mx{292}$/) })
  })
})

describe('a client takes no slab', () => {
  it.each<[string, control.Slab.$Properties[]]>([
    ['that is shorter than the others', [{ ...slab(1), length: MIB / 2 }]],
    ['that is nowhere', [{ ...slab(1), address: 0 }]],
    ['whose address is beyond any memory', [{ ...slab(1), address: 2 ** 63 }]],
    ['whose id cannot be told from others', [{ ...slab(1), id: 2 ** 60 }]],
    ['twice', [slab(1), slab(1)]],
  ])('%s', async (_, slabs) => {
    const client = await session({ hello: welcome }, () => ({ allocate: { slabs } }))
    await expect(client.allocate(slabs.length)).rejects.toMatchObject({ code: 'EPROTO' })
  })

  it('that it has already', async () => {
    const client = await session({ hello: welcome }, () => ({ allocate: { slabs: [slab(1)] } }))
    await client.allocate(1)
    await expect(client.allocate(1)).rejects.toMatchObject({ code: 'EPROTO' })
  })

  it('of a list that never ends', async () => {
    const client = await session({ hello: welcome }, ({ list }) => ({
      list: { slabs: Array.from({ length: 256 }, (_, at) => slab(Number(list?.after) + at + 1)) },
    }))
    await expect(client.list()).rejects.toMatchObject({ code: 'EPROTO' })
  })

  it('when it cannot have all of them', async () => {
    const server = new SwapServer({ memory: 66 * MIB, slabSize: MIB })
    ends.push(() => server.close())
    // No heartbeat says in between how many slabs are free.
    const options = { heartbeatInterval: 60_000 }
    const client = await SwapServerSession.open([await server.listen(address())], options)
    ends.push(() => client.close())
    await expect(client.allocate(67)).rejects.toMatchObject({ code: 'ENOSPC' })
    expect(server.store.free).toBe(66)
    expect(client.freeSlabs).toBe(66)
  })
})

describe('a refusal to take a session up', () => {
  it.each([
    ['ENOENT', 'ended'],
    ['ESTALE', 'fenced'],
    ['EACCES', 'forbidden'],
    ['EPERM', 'forbidden'],
    ['EDQUOT', 'forbidden'],
    ['EPROTO', 'forbidden'],
    ['EINVAL', 'forbidden'],
    // For these, and for codes of later versions, nothing is given up.
    ['ETIMEDOUT', 'later'],
    ['EUSERS', 'later'],
    ['EXDEV', 'later'],
    ['EBADMSG', 'later'],
    ['EBUSY', 'later'],
    ['ECANCELED', 'later'],
    ['EIO', 'later'],
    ['EUNHEARDOF', 'later'],
    ['constructor', 'later'],
  ])('with %s means %s', (code, meaning) => {
    expect(meaningOfRefusal(code)).toBe(meaning)
  })
})
