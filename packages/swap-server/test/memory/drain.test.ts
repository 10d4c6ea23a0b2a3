// A server that is to end, with clients who do not answer as they should: what they have here is lost if it does not wait.
// A second each, for the server looks once a second who may be asked again.
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { VerbsError } from '@rdmakit/verbs'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { endServer } from '../../src/commands/shutdown.js'
import { type RemoteSlab, SwapServer, SwapServerSession } from '../../src/index.js'
import { SessionControl } from '../../src/server/session-control.js'
import { MIB, ownClock } from '../fixture.js'

const REST_MS = 5_000

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

let server: SwapServer
let uri: string
const open: SwapServerSession[] = []
beforeEach(async () => {
  server = new SwapServer({ memory: 4 * MIB, slabSize: MIB, lending: { interval: 20, patience: 1_000 } })
  uri = await server.listen('iwarp://127.0.0.1:0')
})
afterEach(async () => {
  vi.restoreAllMocks()
  await Promise.all(open.splice(0).map((session) => session.close()))
  await server.close()
})

/** Moves what it is asked for: away from here, at least. */
function obliging(session: SwapServerSession, slabs: readonly RemoteSlab[]): void {
  session.onServerRequest({
    activity: (ids) => ids.map(() => 0),
    reclaim: (ids) => {
      void session.free(slabs.filter(({ id }) => ids.includes(id)))
      return ids
    },
  })
}

async function session(): Promise<SwapServerSession> {
  const made = await SwapServerSession.open([uri], { linger: 60_000 })
  open.push(made)
  return made
}

/** Drains it, and passes the time until it has ended. @returns bytes that are still lent */
async function drained(pass: (milliseconds: number) => void): Promise<number> {
  let over = false
  const end = server.lending.drain(Number.POSITIVE_INFINITY).then(() => {
    over = true
  })
  await eventually(() => {
    if (!over) pass(REST_MS / 10)
    return over
  })
  await end
  return server.lending.lent
}

const late = () => new VerbsError('ETIMEDOUT', 'request', 'connection', 'not answered in time')

it.each(['activity', 'reclaim'] as const)(
  'a client that is late to answer about %s is asked again',
  async (about) => {
    const client = await session()
    obliging(client, await client.allocate(2))
    const asked = vi.spyOn(SessionControl.prototype, about).mockRejectedValueOnce(late())
    expect(await drained(ownClock())).toBe(0)
    expect(asked.mock.calls.length).toBeGreaterThan(1)
  },
)

it('a client is waited for that moves a slab for longer than others are patient', async () => {
  const client = await session()
  const slabs = await client.allocate(2)
  client.onServerRequest({ activity: (ids) => ids.map(() => 0), reclaim: (ids) => ids })
  const end = server.lending.drain(Number.POSITIVE_INFINITY)
  await eventually(() => server.lending.reclaim.moving === 2)
  const pass = ownClock()
  await eventually(() => {
    pass(500)
    return server.lending.reclaim.moving === 0
  })
  expect(server.lending.reclaim.exhausted).toBe(false)
  await client.free(slabs)
  await end
  expect(server.lending.lent).toBe(0)
})

it('a client that cannot move anything is not waited for', async () => {
  await (await session()).allocate(1)
  expect(await drained(ownClock())).toBe(MIB)
})

it('a process that takes a session up is asked for what the one before it said it would move', async () => {
  const before = await session()
  await before.allocate(2)
  before.onServerRequest({ activity: (ids) => ids.map(() => 0), reclaim: (ids) => ids })
  const pass = ownClock()
  const end = server.lending.drain(Number.POSITIVE_INFINITY)
  await eventually(() => server.lending.reclaim.moving === 2)
  const after = await SwapServerSession.resume([uri], before.identity)
  open.push(after)
  // Until it knows what it holds it is not asked, for it would refuse.
  const { reclaim } = server.lending
  expect([reclaim.moving, reclaim.exhausted]).toEqual([0, false])
  obliging(after, await after.list())
  await eventually(() => {
    pass(REST_MS / 10)
    return server.lending.lent === 0
  })
  await end
})

it('a process that has taken a session up and does not know yet what it can move has not refused', async () => {
  const before = await session()
  await before.allocate(2)
  const after = await SwapServerSession.resume([uri], before.identity)
  open.push(after)
  const pass = ownClock()
  const asked = vi.spyOn(SessionControl.prototype, 'activity')
  const end = server.lending.drain(Number.POSITIVE_INFINITY)
  await eventually(() => {
    pass(REST_MS / 10)
    return asked.mock.calls.length > 0
  })
  // Frames keep their order: behind the first the client has the request, behind the second the server has its answer.
  await after.query()
  await after.query()
  expect(server.lending.reclaim.exhausted).toBe(false)
  obliging(after, await after.list())
  await end
  expect(server.lending.lent).toBe(0)
})

it('the patience of a server that ends has an end, whatever is collected meanwhile', async () => {
  const client = await session()
  await client.allocate(2)
  client.onServerRequest({ activity: (ids) => ids.map(() => 0), reclaim: (ids) => ids })
  const now = new AbortController()
  let ended = false
  const end = endServer(server, { patience: 300, now: now.signal, say: () => {} }).then(() => {
    ended = true
  })
  try {
    await eventually(() => {
      collectGarbage()
      return ended
    })
    expect(ended).toBe(true)
  } finally {
    now.abort()
    await end
  }
})

it('a server that ends does so at once when it is told to', async () => {
  const client = await session()
  await client.allocate(1)
  client.onServerRequest({ activity: (ids) => ids.map(() => 0), reclaim: (ids) => ids })
  const now = new AbortController()
  const end = server.lending.drain(Number.POSITIVE_INFINITY, now.signal)
  await eventually(() => server.lending.reclaim.moving === 1)
  now.abort()
  await end
  expect(server.lending.lent).toBe(MIB)
})

it('an operator cannot have memory lent again that a server asks for because it ends', async () => {
  const client = await session()
  const slabs = await client.allocate(2)
  client.onServerRequest({ activity: (ids) => ids.map(() => 0), reclaim: (ids) => ids })
  const end = server.lending.drain(Number.POSITIVE_INFINITY)
  await eventually(() => server.lending.reclaim.moving === 2)
  const holding = { bytes: 0, duration: 1, patience: 1 }
  await expect(server.lending.hold(holding)).rejects.toMatchObject({ code: 'ESHUTDOWN' })
  expect(server.lending.free).toBe(0)
  await client.free(slabs)
  await end
})

it('nothing is lent while clients are told of the end', async () => {
  const client = await session()
  const outcome = new Promise<string>((resolve) => {
    // The server waits for an answer for a second at most; here until the client has asked for memory.
    vi.spyOn(SessionControl.prototype, 'tellEnding').mockImplementationOnce(() =>
      client.allocate(1).then(
        () => resolve('lent'),
        ({ code }) => resolve(code),
      ),
    )
  })
  await server.close()
  expect(await outcome).toBe('ENOSPC')
})
