// A tenant with almost no quota takes no place of another tenant.
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { Wire } from '../../../../test/wire.js'
import { type Key, type SessionOptions, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { Pace } from '../../src/server/tenants/pace.js'
import { dataPath, MIB } from '../fixture.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

const MAX_SESSIONS = 16
/** Half of them are divided among two. */
const KEPT = 4
const keys: Readonly<Record<string, Key>> = {
  small: { id: '1', secret: Buffer.alloc(32, 1) },
  prod: { id: '1', secret: Buffer.alloc(32, 2) },
  tiny: { id: '1', secret: Buffer.alloc(32, 3) },
}

let server: SwapServer
let uri: string
let file: OperatorFile
const open: SwapServerSession[] = []

const tenant = (name: string, more: object = {}) => ({
  name,
  keys: [{ id: '1', secret: Buffer.from((keys[name] as Key).secret).toString('hex') }],
  ...more,
})

async function serve(tenants: object[], descriptors = { limit: 4096, open: 40 }) {
  file = new OperatorFile({ tenants })
  server = new SwapServer({
    memory: 8 * MIB,
    slabSize: MIB,
    maxSessions: MAX_SESSIONS,
    tenants: Tenants.load(file.path),
    descriptors,
  })
  uri = await server.listen('iwarp://127.0.0.1:0')
}

beforeEach(() => serve([tenant('prod'), tenant('small', { quota: '1M' })]))

afterEach(async () => {
  await Promise.all(open.splice(0).map((session) => session.close()))
  await server.close()
  file[Symbol.dispose]()
})

async function session(name: string, options: SessionOptions = {}, at = uri): Promise<SwapServerSession> {
  const made = await SwapServerSession.open([at], { tenant: name, key: keys[name] as Key, ...options })
  open.push(made)
  return made
}

/** Repeats `take` until it is refused. @returns how often it succeeded, and the refusal */
async function untilRefused(take: () => Promise<unknown>): Promise<{ count: number; failure: unknown }> {
  for (let count = 0; count < 1_000; count++)
    try {
      await take()
    } catch (failure) {
      return { count, failure }
    }
  throw new Error('it is never refused')
}

describe('a small tenant that takes what it can', () => {
  it('leaves sessions to others', async () => {
    const { count, failure } = await untilRefused(() => session('small'))
    expect(count).toBe(MAX_SESSIONS - KEPT)
    expect(failure).toMatchObject({
      code: 'EUSERS',
      message: expect.stringContaining('reserved for other tenants'),
    })
    for (let i = 0; i < KEPT; i++) await session('prod')
    await expect(session('prod')).rejects.toThrow(/at most 16 sessions/)
  })

  it('leaves a place to linger to one whose link breaks', async () => {
    const wire = await Wire.to(uri)
    try {
      const mine = await session('prod', { linger: 60_000 }, wire.uri)
      await mine.allocate(1)
      // Each of them lingers until the small one has no place for another that does.
      const lingering = () => server.lingeringSessions
      for (let i = 0; i < 2 * MAX_SESSIONS; i++) {
        const before = server.sessions
        await (await session('small', { linger: 60_000 })).leave()
        await eventually(() => server.sessions === before || lingering() === before)
      }
      expect(lingering()).toBe(MAX_SESSIONS - KEPT)
      wire.break()
      await mine.lost
      await eventually(() => lingering() === MAX_SESSIONS - KEPT + 1)
      const again = await SwapServerSession.resume([uri], mine.identity, {
        tenant: 'prod',
        key: keys.prod as Key,
      })
      open.push(again)
      expect(await again.list()).toHaveLength(1)
    } finally {
      wire.close()
    }
  })

  it('gets past its part of the sessions neither by leaving and resuming them', async () => {
    const resume = (left: SwapServerSession) =>
      SwapServerSession.resume([uri], left.identity, {
        tenant: 'small',
        key: keys.small as Key,
        linger: 60_000,
      }).then((made) => open.push(made))
    const part = MAX_SESSIONS - KEPT
    for (let i = 0; i < part; i++) await session('small', { linger: 60_000 })
    const left = open.splice(0)
    for (const each of left) await each.leave()
    await eventually(() => server.lingeringSessions === part)
    for (let i = 0; i < part; i++) await session('small', { linger: 60_000 })
    for (const each of left) await expect(resume(each)).rejects.toMatchObject({ code: 'EUSERS' })
    expect(server.lingeringSessions).toBe(part)
    for (let i = 0; i < KEPT; i++) await session('prod')
    // Taken from a client that has it, a session keeps its place; one that lingers gets the place that is free.
    const [attended, other] = open as [SwapServerSession, SwapServerSession]
    await resume(attended)
    await other.close()
    await eventually(() => server.sessions === 2 * part + KEPT - 1)
    await resume(left[0] as SwapServerSession)
    expect(server.lingeringSessions).toBe(part - 1)
  })

  it('leaves data connections to others, and to one that comes back as many as it had', async () => {
    await server.close()
    file[Symbol.dispose]()
    await serve([tenant('prod'), tenant('small')], { limit: 300, open: 40 })
    const { dataConnections } = server.budget
    // More than are kept for it.
    const kept = Math.floor(dataConnections / 4)
    const had = kept + 2
    const mine = await session('prod', { linger: 60_000 })
    for (let i = 0; i < had; i++) await dataPath(mine)
    const small = await session('small')
    const { count } = await untilRefused(() => dataPath(small))
    expect(count).toBeGreaterThan(0)
    expect(count).toBe(dataConnections - had)
    await mine.leave()
    await eventually(() => server.lingeringSessions === 1)
    const again = await SwapServerSession.resume([uri], mine.identity, {
      tenant: 'prod',
      key: keys.prod as Key,
    })
    open.push(again)
    for (let i = 0; i < had; i++) await dataPath(again)
    await expect(dataPath(again)).rejects.toThrow()
  })

  it('has no more than its file says', async () => {
    await server.close()
    file[Symbol.dispose]()
    await serve([tenant('prod'), tenant('tiny', { sessions: 2, dataConnections: 3 })])
    const { count, failure } = await untilRefused(() => session('tiny'))
    expect(count).toBe(2)
    expect(failure).toMatchObject({
      code: 'EUSERS',
      message: expect.stringContaining('all of its 2 sessions'),
    })
    const [one, other] = open as [SwapServerSession, SwapServerSession]
    await dataPath(one)
    await dataPath(other)
    expect((await untilRefused(() => dataPath(one))).count).toBe(1)
  })

  it('is refused a data connection at once when too many wait for their turns', async () => {
    const small = await session('small')
    const next = vi.spyOn(Pace.prototype, 'next').mockReturnValue(undefined)
    try {
      const began = performance.now()
      await expect(dataPath(small)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
      expect(performance.now() - began).toBeLessThan(4_000)
    } finally {
      next.mockRestore()
    }
    await dataPath(small)
  })

  it('waits for its turn with each data connection, unless nobody else is there', async () => {
    const next = vi.spyOn(Pace.prototype, 'next').mockReturnValue(50)
    try {
      const small = await session('small')
      const began = performance.now()
      await dataPath(small)
      // A timer may be a millisecond early.
      expect(performance.now() - began).toBeGreaterThanOrEqual(49)
      expect(next).toHaveBeenCalledOnce()
      await small.close()
      await server.close()
      file[Symbol.dispose]()
      await serve([tenant('small')])
      await dataPath(await session('small'))
      expect(next).toHaveBeenCalledOnce()
    } finally {
      next.mockRestore()
    }
  })
})

it('has 64 requests answered in 16 ms, and those beyond in their order later', async () => {
  const small = await session('small')
  const began = performance.now()
  const ended: number[] = []
  await Promise.all(Array.from({ length: 200 }, (_, i) => small.query().then(() => ended.push(i))))
  // Three windows have passed; a timer may be a millisecond early.
  expect(performance.now() - began).toBeGreaterThanOrEqual(3 * 15)
  expect(ended).toEqual(Array.from({ length: 200 }, (_, i) => i))
})

describe('the pace of a tenant', () => {
  it('is a burst at once, then a turn each 2 ms; a pause earns as much of a burst again', () => {
    const pace = new Pace()
    expect(Array.from({ length: 128 }, () => pace.next(1_000))).toEqual(Array(128).fill(0))
    expect([pace.next(1_000), pace.next(1_000), pace.next(1_001)]).toEqual([2, 4, 5])
    // 131 turns since 1,000 are over at 1,006.
    expect(Array.from({ length: 4 }, () => pace.next(1_012))).toEqual([0, 0, 0, 2])
    expect(Array.from({ length: 129 }, () => pace.next(9_000)).filter((wait) => wait !== 0)).toEqual([2])
  })

  it('refuses turns that would come in more than 4 s, and counts only those that it gives', () => {
    const pace = new Pace()
    const waits = Array.from({ length: 128 + 2_000 }, () => pace.next(1_000))
    expect(waits.slice(-2)).toEqual([3_998, 4_000])
    for (let i = 0; i < 100; i++) expect(pace.next(1_000)).toBeUndefined()
    expect([pace.next(1_002), pace.next(1_002)]).toEqual([4_000, undefined])
  })
})
