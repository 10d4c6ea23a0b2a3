import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { Resource } from '@rdmakit/verbs'
import { afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { standStill } from '../../../../test/stand-still.js'
import { Wire } from '../../../../test/wire.js'
import {
  type RemoteSlab,
  type SessionOptions,
  SwapServer,
  SwapServerSession,
  Tenants,
} from '../../src/index.js'
import { ADDRESSES, dataPath, MIB, ownClock } from '../fixture.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

const LINGER = { linger: 60_000 }

let address: () => string
let server: SwapServer
let uri: string
const open: SwapServerSession[] = []

beforeEach(async () => {
  server = new SwapServer({ memory: 8 * MIB, slabSize: MIB, maxLinger: 120_000 })
  uri = await server.listen(address())
})

afterEach(async () => {
  await Promise.all(open.splice(0).map((session) => session.close()))
  await server.close()
})

async function session(options: SessionOptions = LINGER): Promise<SwapServerSession> {
  const made = await SwapServerSession.open([uri], options)
  open.push(made)
  return made
}

async function resume(left: SwapServerSession, options: SessionOptions = LINGER) {
  const made = await SwapServerSession.resume([uri], left.identity, options)
  open.push(made)
  return made
}

describe.each(Object.entries(ADDRESSES))('a session that lingers, over %s', (_, listenAt) => {
  beforeAll(() => {
    address = listenAt
  })

  it('is granted what it asks for, at most what the server allows', async () => {
    expect((await session()).linger).toBe(60_000)
    expect((await session({ linger: 600_000 })).linger).toBe(120_000)
    expect((await session({})).linger).toBe(0)
  })

  it('keeps its slabs, their keys and their contents when it is left, and is resumed with them', async () => {
    const first = await session()
    const slabs = await first.allocate(3)
    const content = randomBytes(MIB)
    const before = await dataPath(first)
    before.bytes.set(content)
    expect(await before.move('rdma-write', slabs[1] as RemoteSlab)).toBe('success')
    await first.leave()
    await eventually(() => server.lingeringSessions === 1)
    expect(server.store.free).toBe(5)
    const second = await resume(first)
    expect(second.identity).toEqual(first.identity)
    expect(server.lingeringSessions).toBe(0)
    expect(await second.list()).toEqual(slabs)
    const after = await dataPath(second)
    expect(await after.move('rdma-read', slabs[1] as RemoteSlab)).toBe('success')
    expect(content.equals(after.bytes)).toBe(true)
    await second.allocate(1)
    expect(server.store.free).toBe(4)
  })

  it('is taken from a client that still has it, whose writes land no more', async () => {
    const old = await session()
    const [slab] = (await old.allocate(1)) as [RemoteSlab]
    const writer = await dataPath(old)
    writer.bytes.fill(1)
    expect(await writer.move('rdma-write', slab)).toBe('success')
    const taker = await resume(old)
    writer.bytes.fill(2)
    expect(await writer.move('rdma-write', slab).catch(() => 'refused')).not.toBe('success')
    const reader = await dataPath(taker)
    expect(await reader.move('rdma-read', slab)).toBe('success')
    expect(reader.bytes.every((byte) => byte === 1)).toBe(true)
    await old.lost
  })

  // The client's posted requests may still arrive (stuck-link.test.ts has a device that takes so long).
  it('is resumed when the device has destroyed its data connections, and not before', async () => {
    const first = await session()
    const slabs = await first.allocate(2)
    await dataPath(first)
    const late = vi.spyOn(Resource.prototype, 'destroyed', 'get').mockReturnValue(false)
    onTestFinished(() => late.mockRestore())
    await first.leave()
    await eventually(() => server.lingeringSessions === 1)
    // The server waits two seconds for the device: of a clock that goes as the test says.
    const pass = ownClock()
    const given: unknown[] = []
    void resume(first).catch((failure) => given.push(failure))
    await eventually(() => {
      pass(100)
      return given.length > 0
    })
    expect(given).toEqual([
      expect.objectContaining({ code: 'ETIMEDOUT', message: expect.stringMatching(/1 are left/) }),
    ])
    expect(server.lingeringSessions).toBe(1)
    const resuming = resume(first)
    late.mockRestore()
    expect((await (await resuming).list()).map(({ id }) => id)).toEqual(slabs.map(({ id }) => id))
  })

  it('does not end while its owner waits for the device', async () => {
    const linger = 2_000 // in which this process must get to the claim
    const first = await session({ linger })
    const slabs = await first.allocate(2)
    await dataPath(first)
    const late = vi.spyOn(Resource.prototype, 'destroyed', 'get').mockReturnValue(false)
    onTestFinished(() => late.mockRestore())
    // The device is not given up on meanwhile.
    ownClock()
    await first.leave()
    await eventually(() => server.lingeringSessions === 1)
    const resuming = resume(first)
    // Of the same event loop: the server's timer, which was set before, comes before this one.
    await delay(linger)
    late.mockRestore()
    expect((await (await resuming).list()).map(({ id }) => id)).toEqual(slabs.map(({ id }) => id))
  })

  it('ends when nobody resumes it in time', async () => {
    const client = await session({ linger: 50 })
    await client.allocate(8)
    await client.leave()
    await eventually(() => server.store.free === 8 && server.sessions === 0)
    await expect(resume(client)).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('is resumed behind a standstill of the server in which its time was up', async () => {
    const client = await session({ linger: 500 })
    const slabs = await client.allocate(2)
    await client.leave()
    await eventually(() => server.lingeringSessions === 1)
    standStill(1_000)
    expect(await (await resume(client)).list()).toEqual(slabs)
  })

  it('ends soon behind a standstill of the server, when nobody resumes it', async () => {
    const impatient = new SwapServer({ memory: MIB, slabSize: MIB, sessionTimeout: 2_000 })
    try {
      const client = await SwapServerSession.open([await impatient.listen(address())], { linger: 200 })
      await client.leave()
      await eventually(() => impatient.lingeringSessions === 1)
      standStill(600)
      const began = performance.now()
      await eventually(() => impatient.sessions === 0)
      // A timer may be a millisecond early.
      expect(performance.now() - began).toBeGreaterThanOrEqual(499)
    } finally {
      await impatient.close()
    }
  })

  it('ends at once with an orderly close', async () => {
    const client = await session()
    await client.allocate(8)
    await client.close()
    expect(server.store.free).toBe(8)
    await eventually(() => server.sessions === 0)
    await expect(resume(client)).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('lingers when its client is silent for too long', async () => {
    const impatient = new SwapServer({ memory: MIB, slabSize: MIB, sessionTimeout: 600 })
    try {
      const at = await impatient.listen(address())
      const client = await SwapServerSession.open([at], { ...LINGER, heartbeatInterval: 60_000 })
      const slabs = await client.allocate(1)
      await client.lost
      await eventually(() => impatient.lingeringSessions === 1)
      const again = await SwapServerSession.resume([at], client.identity, {
        ...LINGER,
        heartbeatInterval: 100,
      })
      expect(await again.list()).toEqual(slabs)
      await again.close()
      await client.close()
    } finally {
      await impatient.close()
    }
  })

  it('can be resumed again and again, and asked not to linger any more', async () => {
    let client = await session()
    await client.allocate(2)
    for (let time = 0; time < 3; time++) {
      await client.leave()
      client = await resume(client)
    }
    expect(await client.list()).toHaveLength(2)
    await client.leave()
    client = await resume(client, {})
    await client.leave()
    await eventually(() => server.store.free === 8)
  })

  it('lists more slabs than fit into one answer', async () => {
    const large = new SwapServer({ memory: 300 * MIB, slabSize: MIB })
    try {
      const client = await SwapServerSession.open([await large.listen(address())])
      const slabs = await client.allocate(260)
      expect(await client.list()).toEqual(slabs)
      await client.free(slabs.slice(0, 3))
      expect(await client.list()).toEqual(slabs.slice(3))
      await client.close()
    } finally {
      await large.close()
    }
  })
})

describe('a session that is resumed while requests of its client are on their way', () => {
  beforeAll(() => {
    address = ADDRESSES.iwarp
  })

  it('loses nothing by them, and gives nothing that nobody hears of', async () => {
    const wire = await Wire.to(uri)
    onTestFinished(() => wire.close())
    const old = await SwapServerSession.open([wire.uri], LINGER)
    open.push(old)
    const slabs = await old.allocate(2)
    wire.hold()
    const late = Promise.allSettled([old.free(slabs), old.allocate(1)])
    const taker = await resume(old)
    wire.release()
    expect((await late).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    expect((await taker.list()).map(({ id }) => id)).toEqual(slabs.map(({ id }) => id))
    expect(server.store.free).toBe(6)
    const reader = await dataPath(taker)
    expect(await reader.move('rdma-read', slabs[0] as RemoteSlab)).toBe('success')
  })
})

describe('who cannot resume a session', () => {
  beforeAll(() => {
    address = ADDRESSES.shm
  })

  it('one with a wrong token, or none', async () => {
    const owner = await session()
    await owner.allocate(1)
    for (const token of [randomBytes(16), new Uint8Array(), randomBytes(17)])
      await expect(
        SwapServerSession.resume([uri], { ...owner.identity, token }, LINGER),
      ).rejects.toMatchObject({ code: 'ENOENT' })
    // Nor was it harmed by that.
    expect(await owner.list()).toHaveLength(1)
    expect(server.sessions).toBeGreaterThan(0)
  })

  it('one that comes to a server restarted meanwhile', async () => {
    const owner = await session()
    await owner.leave()
    await server.close()
    server = new SwapServer({ memory: 8 * MIB, slabSize: MIB })
    uri = await server.listen(address())
    await expect(resume(owner)).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('one whose server lets none linger', async () => {
    const strict = new SwapServer({ memory: MIB, slabSize: MIB, maxLinger: 0 })
    try {
      const client = await SwapServerSession.open([await strict.listen(address())], LINGER)
      expect(client.linger).toBe(0)
      await client.allocate(1)
      await client.leave()
      await eventually(() => strict.store.free === 1)
    } finally {
      await strict.close()
    }
  })
})

describe('a session that lingers, of a tenant with a key,', () => {
  const key = (id: string) => ({ id, secret: randomBytes(32) })
  const prod = { tenant: 'prod', key: key('one') }
  const test = { tenant: 'test', key: key('two') }
  const listed = ({ tenant, key: { id, secret } }: typeof prod) => ({
    name: tenant,
    keys: [{ id, secret: secret.toString('base64') }],
  })
  let left: SwapServerSession

  beforeEach(async () => {
    await server.close()
    using file = new OperatorFile({ tenants: [listed(prod), listed(test)] })
    server = new SwapServer({ memory: 8 * MIB, slabSize: MIB, tenants: Tenants.load(file.path) })
    uri = await server.listen(ADDRESSES.iwarp())
    left = await session({ ...LINGER, ...prod })
    await left.allocate(2)
    await left.leave()
    await eventually(() => server.lingeringSessions === 1)
  })

  it('is resumed by who proves to have the key', async () => {
    const again = await resume(left, { ...LINGER, ...prod })
    expect((await again.list()).length).toBe(2)
    expect(server.lingeringSessions).toBe(0)
  })

  // After ENOENT a client would take its memory there for lost, though it only has the wrong key file.
  it('is not for another tenant, and stays for its own', async () => {
    await expect(resume(left, { ...LINGER, ...test })).rejects.toMatchObject({ code: 'EACCES' })
    expect(server.lingeringSessions).toBe(1)
    expect((await (await resume(left, { ...LINGER, ...prod })).list()).length).toBe(2)
  })

  it('is not resumed with a wrong key or none, and stays for its own', async () => {
    const wrong = { ...prod, key: { ...prod.key, secret: randomBytes(32) } }
    for (const options of [LINGER, { ...LINGER, ...wrong }])
      await expect(resume(left, options)).rejects.toMatchObject({ code: 'EACCES' })
    expect(server.lingeringSessions).toBe(1)
    expect((await (await resume(left, { ...LINGER, ...prod })).list()).length).toBe(2)
  })

  it('says in the status that it lingers, and uses no bandwidth', () => {
    expect(server.query('operator').sessionList).toEqual([
      expect.objectContaining({ tenant: 'prod', lingering: true, slabs: 2 }),
    ])
    expect(server.bandwidth.useOf('prod')).toEqual({ bytes: 0, operations: 0 })
  })
})
