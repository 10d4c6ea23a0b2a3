// Which of several processes with one state folder, or copies of it, has the sessions: docs/page-service/fencing.md.
import { RingConnection } from '@rdmakit/ring-transport'
import { ConnectionId } from '@rdmakit/verbs'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type RemoteSlab, type SessionOptions, SwapServer, SwapServerSession } from '../../src/index.js'
import { control, dataConnectionData, parseDataConnection, TOKEN_BYTES } from '../../src/protocol/messages.js'
import {
  compareTakeOvers,
  INSTANCE_BYTES,
  judgeClaim,
  NO_TAKE_OVER,
  nextTakeOver,
  type TakeOver,
  takeOverOf,
} from '../../src/protocol/take-over-number.js'
import { impostor } from '../admission/impostor.js'
import { ADDRESSES, dataPath, MIB } from '../fixture.js'

const instance = (byte: number) => new Uint8Array(INSTANCE_BYTES).fill(byte)
/** `of(2, 7)`: take-over 2 by the instance 0x0707… */
const of = (number: number, byte = 0): TakeOver => ({ number, instance: instance(byte) })
const anyTakeOver = fc
  .tuple(fc.nat({ max: 3 }), fc.nat({ max: 3 }))
  .map(([number, byte]) => (number === 0 ? NO_TAKE_OVER : of(number, byte)))

describe('what a server decides', () => {
  it.each<[string, TakeOver, TakeOver, boolean, boolean, string]>([
    // the session's number, the client's, it lingers, only if no process has it
    ['the same process, behind a broken link', of(2, 5), of(2, 5), false, false, 'granted'],
    ['the same process, in time', of(2, 5), of(2, 5), true, false, 'granted'],
    ['the next process', of(2, 5), of(3, 1), false, false, 'granted'],
    ['a process far ahead', of(2, 5), of(9, 0), true, false, 'granted'],
    ['the one of two copies with the higher instance', of(2, 5), of(2, 6), false, false, 'granted'],
    ['the one of two copies with the lower instance', of(2, 5), of(2, 4), false, false, 'fenced'],
    ['the process before', of(2, 5), of(1, 9), false, false, 'fenced'],
    ['the process before, of a session that nobody has', of(2, 5), of(1, 9), true, false, 'fenced'],
    ['a client without a number, of one without', NO_TAKE_OVER, NO_TAKE_OVER, false, false, 'granted'],
    ['a client without a number, of one with a number', of(1, 0), NO_TAKE_OVER, true, false, 'fenced'],
    ['the first with a number', NO_TAKE_OVER, of(1, 0), false, false, 'granted'],
    ['one that gives back what nobody has', of(2, 5), of(3, 0), true, true, 'granted'],
    ['one that gives back what a client has', of(2, 5), of(3, 0), false, true, 'attended'],
    ['one that gives back what a later one has', of(2, 5), of(1, 0), false, true, 'fenced'],
  ])('of %s', (_, takeOver, offered, lingering, unattended, claim) => {
    expect(judgeClaim({ takeOver, lingering }, offered, unattended)).toBe(claim)
  })

  it('is a total order, so that of any two one leaves', () => {
    fc.assert(
      fc.property(anyTakeOver, anyTakeOver, anyTakeOver, (a, b, c) => {
        expect(Math.sign(compareTakeOvers(a, b))).toBe(-Math.sign(compareTakeOvers(b, a)) + 0)
        if (compareTakeOvers(a, b) === 0) expect(a).toEqual(b)
        if (compareTakeOvers(a, b) <= 0 && compareTakeOvers(b, c) <= 0)
          expect(compareTakeOvers(a, c)).toBeLessThanOrEqual(0)
        expect(compareTakeOvers(a, nextTakeOver(a))).toBeLessThan(0)
      }),
    )
  })

  it('does not hang on the order in which servers hear of the processes', () => {
    const processes = fc.array(anyTakeOver, { minLength: 1, maxLength: 6 })
    const orders = processes.chain((some) =>
      fc.tuple(
        fc.constant(some),
        fc.shuffledSubarray(some, { minLength: some.length }),
        fc.shuffledSubarray(some, { minLength: some.length }),
      ),
    )
    fc.assert(
      fc.property(orders, ([, ...servers]) => {
        const [one, other] = servers.map((heard) =>
          heard.reduce(
            (has, offered) =>
              judgeClaim({ takeOver: has, lingering: false }, offered, false) === 'granted' ? offered : has,
            NO_TAKE_OVER,
          ),
        )
        expect(one).toEqual(other)
      }),
    )
  })
})

describe('a take-over on the wire', () => {
  it('is nothing else than a number and eight bytes', () => {
    for (const message of [
      { number: 1, instance: new Uint8Array(INSTANCE_BYTES - 1) },
      { number: 1, instance: new Uint8Array(INSTANCE_BYTES + 1) },
      { number: 1 },
      { number: 2 ** 53, instance: instance(0) },
    ])
      expect(takeOverOf(message)).toBeUndefined()
    for (const none of [undefined, null, {}, { number: 0, instance: instance(9) }])
      expect(takeOverOf(none)).toEqual(NO_TAKE_OVER)
    expect(takeOverOf({ number: 7, instance: instance(9) })).toEqual(of(7, 9))
  })

  it('is in the private data of a data connection, behind which a device may put zeros', () => {
    const token = Buffer.alloc(TOKEN_BYTES, 0xab)
    fc.assert(
      fc.property(anyTakeOver, fc.nat({ max: 16 }), (takeOver, zeros) => {
        const bytes = Buffer.concat([dataConnectionData(token, takeOver), Buffer.alloc(zeros)])
        expect(bytes.length - zeros).toBeLessThanOrEqual(56)
        expect(parseDataConnection(bytes)).toEqual({ token, takeOver })
      }),
    )
    const whole = dataConnectionData(token, of(3, 4))
    for (let length = 0; length < whole.length; length++)
      expect(parseDataConnection(whole.subarray(0, length))).toBeUndefined()
    // Messages of clients without a number, as servers before numbers know them.
    expect(Buffer.from(dataConnectionData(token)).toString('hex')).toBe(
      `${Buffer.from('RKPG').toString('hex')}01000000${'ab'.repeat(TOKEN_BYTES)}`,
    )
  })
})

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

async function serve(address: string) {
  const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB })
  ends.push(() => server.close())
  return { server, uri: await server.listen(address) }
}

async function open(uri: string, options: SessionOptions): Promise<SwapServerSession> {
  const session = await SwapServerSession.open([uri], { linger: 60_000, ...options })
  ends.push(() => session.close())
  return session
}

async function resume(uri: string, { identity }: SwapServerSession, options: SessionOptions) {
  const session = await SwapServerSession.resume([uri], identity, { linger: 60_000, ...options })
  ends.push(() => session.leave())
  return session
}

/** A program made before there were numbers. */
async function old(uri: string, hello: control.Hello.$Properties) {
  const connection = await RingConnection.connect(uri)
  ends.push(() => connection.close())
  const request = { hello: { version: 1, client: 'an old one', lingerMs: 60_000, ...hello } }
  return control.Response.decode(await connection.request(control.Request.encode(request).finish()))
}

describe.each(Object.entries(ADDRESSES))('a session over %s', (_, address) => {
  let server: SwapServer
  let uri: string
  beforeEach(async () => {
    ;({ server, uri } = await serve(address()))
  })

  it('stays with who has it when one comes that it was taken over from', async () => {
    const first = await open(uri, { takeOver: of(1, 9) })
    const [slab] = (await first.allocate(1)) as [RemoteSlab]
    const owner = await resume(uri, first, { takeOver: of(2, 1) })
    await first.lost
    const path = await dataPath(owner)
    path.bytes.fill(7)
    for (const takeOver of [of(1, 9), of(2, 0), NO_TAKE_OVER])
      await expect(resume(uri, first, { takeOver })).rejects.toMatchObject({
        code: 'ESTALE',
        message: expect.stringMatching(/another process has taken the volume over: .*take-over 2, /),
      })
    expect(await path.move('rdma-write', slab)).toBe('success')
    expect(await owner.list()).toEqual([slab])
    expect(owner.over).toBeUndefined()
  })

  it('is given back to the same process, and to no other of the same number', async () => {
    const owner = await open(uri, { takeOver: of(1, 5) })
    await owner.allocate(1)
    const again = await resume(uri, owner, { takeOver: of(1, 5) })
    expect(await again.list()).toHaveLength(1)
    await again.leave()
    await eventually(() => server.lingeringSessions === 1)
    await expect(resume(uri, owner, { takeOver: of(1, 4) })).rejects.toMatchObject({ code: 'ESTALE' })
    expect(server.lingeringSessions).toBe(1)
    expect(await (await resume(uri, owner, { takeOver: of(1, 5) })).list()).toHaveLength(1)
  })

  it('takes no data connection of a process that does not have it any more', async () => {
    const first = await open(uri, { takeOver: of(1, 9) })
    await first.allocate(1)
    const { token } = first.identity
    const owner = await resume(uri, first, { takeOver: of(2, 1) })
    const connect = async (privateData: Uint8Array) => {
      const id = await ConnectionId.resolve(uri)
      const protectionDomain = id.context.allocateProtectionDomain()
      const queue = id.context.createCompletionQueue({ entries: 16 })
      ends.push(() => {
        id.close()
        queue.close()
        protectionDomain.close()
      })
      id.createQueuePair(protectionDomain, { sendQueue: queue })
      await id.connect({ privateData })
    }
    for (const takeOver of [of(1, 9), of(2, 0), of(2, 2), of(3, 0), NO_TAKE_OVER])
      await expect(connect(dataConnectionData(token, takeOver))).rejects.toMatchObject({
        code: 'ECONNREFUSED',
      })
    await connect(dataConnectionData(token, of(2, 1)))
    await dataPath(owner)
  })

  it('is given back from outside only when nobody has it', async () => {
    const owner = await open(uri, { takeOver: of(1, 5) })
    await owner.allocate(1)
    const taker = { takeOver: of(2, 0), unattended: true }
    await expect(resume(uri, owner, taker)).rejects.toMatchObject({ code: 'EBUSY' })
    // Nor is it fenced by that.
    const again = await resume(uri, owner, { takeOver: of(1, 5) })
    expect(await again.list()).toHaveLength(1)
    await again.leave()
    await eventually(() => server.lingeringSessions === 1)
    await (await resume(uri, owner, taker)).close()
    await eventually(() => server.sessions === 0 && server.store.free === 4)
  })

  it('of a client without numbers is taken up by one with a number, and goes back to none without', async () => {
    const { hello } = await old(uri, {})
    const named = { session: hello?.session ?? 0, token: hello?.token ?? new Uint8Array() }
    expect((await old(uri, { resume: named })).hello?.resumed).toBe(true)
    const owner = await SwapServerSession.resume(
      [uri],
      { epoch: hello?.epoch ?? '', ...named },
      { linger: 60_000, takeOver: of(1, 5) },
    )
    ends.push(() => owner.close())
    expect(owner.fences).toBe(true)
    await owner.allocate(1)
    // After ESTALE it would take its memory for lost; after EACCES it tries again for a while.
    expect((await old(uri, { resume: named })).failure?.code).toBe('EACCES')
    expect(await owner.list()).toHaveLength(1)
  })

  it('is not opened or resumed with a number that is none', async () => {
    const takeOver = { number: 1, instance: new Uint8Array(3) }
    expect((await old(uri, { takeOver })).failure?.code).toBe('EPROTO')
    const owner = await open(uri, { takeOver: of(1, 5) })
    const { session, token } = owner.identity
    expect((await old(uri, { takeOver, resume: { session, token } })).failure?.code).toBe('EPROTO')
    expect(await owner.list()).toEqual([])
  })
})

it('of two copies of a state folder at two servers one gets both, whoever comes first where', async () => {
  const [low, high] = [{ takeOver: of(2, 1) }, { takeOver: of(2, 8) }]
  const orders = [
    [low, high],
    [high, low],
  ] as const
  const sessions = await Promise.all(
    orders.map(async () => {
      const { uri } = await serve(ADDRESSES.iwarp())
      return await open(uri, { takeOver: of(1, 5) })
    }),
  )
  for (const [at, order] of orders.entries()) {
    const session = sessions[at] as SwapServerSession
    for (const process of order) await resume(session.uri, session, process).catch(() => {})
  }
  for (const session of sessions) {
    await expect(resume(session.uri, session, low)).rejects.toMatchObject({ code: 'ESTALE' })
    expect(await (await resume(session.uri, session, high)).list()).toEqual([])
  }
})

it('a server without numbers is told by what it does not say', async () => {
  const welcome = {
    version: 1,
    epoch: '0123456789abcdef',
    token: new Uint8Array(TOKEN_BYTES),
    slabSize: MIB,
    totalSlabs: 1,
    freeSlabs: 1,
    session: 1,
  }
  const server = await impostor(ADDRESSES.iwarp(), () => ({ hello: welcome }))
  ends.push(() => server.close())
  expect((await open(server.uri, { takeOver: of(1, 5) })).fences).toBe(false)
})
