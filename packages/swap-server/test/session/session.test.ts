import { randomBytes } from 'node:crypto'
import { RingConnection } from '@rdmakit/ring-transport'
import { ConnectionId, ConnectionRejectedError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { pino } from 'pino'
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { standStill } from '../../../../test/stand-still.js'
import { type RemoteSlab, type SessionOptions, SwapServer, SwapServerSession } from '../../src/index.js'
import { control, dataConnectionData } from '../../src/protocol/messages.js'
import { ADDRESSES, dataPath, isKeptFrom, MIB, ownClock } from '../fixture.js'

let address: () => string
let server: SwapServer
let uri: string
const open: SwapServerSession[] = []

/** Each case of the group has a server of its own. */
function serve(listenAt: () => string): void {
  beforeAll(() => {
    address = listenAt
  })

  beforeEach(async () => {
    server = new SwapServer({ memory: 8 * MIB, slabSize: MIB })
    uri = await server.listen(address())
  })

  afterEach(async () => {
    await Promise.all(open.splice(0).map((session) => session.close()))
    await server.close()
  })
}

async function session(): Promise<SwapServerSession> {
  const made = await SwapServerSession.open([uri])
  open.push(made)
  return made
}

describe.each(Object.entries(ADDRESSES))('a session over %s', (_, listenAt) => {
  serve(listenAt)

  it('tells of the server at hello', async () => {
    expect(await session()).toMatchObject({
      slabSize: MIB,
      totalSlabs: 8,
      freeSlabs: 8,
      epoch: server.epoch,
    })
  })

  it('gives up an allocation that is aborted, whose answer comes later, and goes on', async () => {
    const client = await session()
    const { store } = server
    const allocate = store.allocate.bind(store)
    const answer = deferred<void>()
    let asked = 0
    store.allocate = async (...request) => {
      if (asked++ === 0) await answer.promise
      return await allocate(...request)
    }
    const abort = new AbortController()
    const given = client.allocate(1, abort)
    await eventually(() => asked === 1)
    abort.abort(new Error('enough'))
    await expect(given).rejects.toThrow('enough')
    answer.resolve()
    expect(await client.allocate(1)).toHaveLength(1)
  })

  it('allocates zeroed slabs that a data connection writes and reads', async () => {
    const client = await session()
    const [slab] = (await client.allocate(1)) as [RemoteSlab]
    const { bytes, move } = await dataPath(client)
    bytes.fill(0xff)
    expect(await move('rdma-read', slab)).toBe('success')
    expect(bytes.every((byte) => byte === 0)).toBe(true)
    const content = randomBytes(MIB)
    bytes.set(content)
    expect(await move('rdma-write', slab)).toBe('success')
    bytes.fill(0)
    expect(await move('rdma-read', slab)).toBe('success')
    expect(content.equals(bytes)).toBe(true)
  })

  it('gets zeros again from memory that another client wrote', async () => {
    const first = await session()
    const slabs = await first.allocate(8)
    const writer = await dataPath(first)
    writer.bytes.fill(0xee)
    for (const slab of slabs) expect(await writer.move('rdma-write', slab)).toBe('success')
    await first.free(slabs)
    const second = await session()
    const reader = await dataPath(second)
    for (const slab of await second.allocate(8)) {
      expect(await reader.move('rdma-read', slab)).toBe('success')
      expect(reader.bytes.every((byte) => byte === 0)).toBe(true)
    }
  })

  it("cannot reach another session's slab with its key", async () => {
    const [mine, theirs] = [await session(), await session()]
    const [secret] = (await theirs.allocate(1)) as [RemoteSlab]
    await isKeptFrom(mine, secret)
  })

  it('cannot reach a slab that it gave back', async () => {
    const client = await session()
    const slabs = await client.allocate(1)
    const released = vi.spyOn(server.store, 'release')
    await isKeptFrom(client, slabs[0] as RemoteSlab, async () => {
      await client.free(slabs)
      // The device of a busy machine may be late with it.
      const regions = released.mock.calls.flatMap(([slabs]) => [...slabs]).map(({ region }) => region)
      expect(regions).toHaveLength(1)
      await eventually(() => regions.every(({ destroyed }) => destroyed))
    })
  })

  it('allocates all or none: ENOSPC takes nothing', async () => {
    const client = await session()
    await client.allocate(5)
    await expect(client.allocate(4)).rejects.toMatchObject({ code: 'ENOSPC' })
    expect(server.store.free).toBe(3)
    await client.allocate(3)
    expect(server.store.free).toBe(0)
  })

  it('frees what it allocated when it ends', async () => {
    const client = await session()
    await client.allocate(8)
    expect(server.store.free).toBe(0)
    await client.close()
    await eventually(() => server.store.free === 8 && server.sessions === 0)
  })

  it('may leave while its memory is being pinned', async () => {
    const errors: string[] = []
    const log = pino({ level: 'error' }, { write: (line: string) => errors.push(line) })
    const large = new SwapServer({ memory: 64 * MIB, slabSize: MIB, log })
    try {
      const connection = await RingConnection.connect(await large.listen(address()))
      const ask = (request: control.Request.$Properties) =>
        connection.request(control.Request.encode(request).finish())
      await ask({ hello: { version: 1 } })
      const pinning = ask({ allocate: { count: 64 } }).catch(() => {})
      await eventually(() => large.store.free === 0)
      await connection.close({ drain: false })
      await pinning
      await eventually(() => large.store.free === 64 && large.lending.free === 64)
      expect(errors).toEqual([])
    } finally {
      await large.close()
    }
  })

  it('has no memory of an answer that comes when no client waits for it any more', async () => {
    const client = await session()
    const pass = ownClock()
    const { store } = server
    const allocate = store.allocate.bind(store)
    let took = 0
    vi.spyOn(store, 'allocate').mockImplementation(async (...asked) => {
      const slabs = await allocate(...asked)
      pass(took)
      return slabs
    })
    const free = store.free
    took = 60_000
    await expect(client.allocate(2)).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    expect([store.free, await client.list()]).toEqual([free, []])
    took = 10_000
    expect(await client.allocate(2)).toHaveLength(2)
    expect(store.free).toBe(free - 2)
  })

  it('cannot free a slab twice, nor one of another', async () => {
    const client = await session()
    const [slab] = (await client.allocate(1)) as [RemoteSlab]
    const other = await session()
    await expect(other.free([slab])).rejects.toMatchObject({ code: 'EINVAL' })
    await client.free([slab])
    await expect(client.free([slab])).rejects.toMatchObject({ code: 'EINVAL' })
    expect(server.store.free).toBe(8)
  })

  it('hears of its loss when the server ends', async () => {
    const client = await session()
    await server.close()
    expect(await client.lost).toBe('the server has given up its memory: the server ends')
  })

  it('opens with the first address that answers', async () => {
    const made = await SwapServerSession.open(['iwarp://127.0.0.1:1', uri])
    open.push(made)
    expect(made.uri).toBe(uri)
  })
})

interface Impatient {
  readonly server: SwapServer
  readonly client: SwapServerSession
  /** whether the client has heard of its end */
  readonly lost: () => boolean
  /** Until the server has answered so many more heartbeats, or none comes any more. */
  beats(count: number): Promise<void>
}

/** A session with a server that has little patience. */
async function withImpatient(
  address: string,
  sessionTimeout: number,
  options: SessionOptions,
  body: (impatient: Impatient) => Promise<void>,
): Promise<void> {
  const server = new SwapServer({ memory: MIB, slabSize: MIB, sessionTimeout })
  try {
    const answered = vi.spyOn(server, 'answered')
    const client = await SwapServerSession.open([await server.listen(address)], options)
    let lost = false
    void client.lost.then(() => {
      lost = true
    })
    const beaten = () => answered.mock.calls.filter(([request]) => request === 'heartbeat').length
    const beats = (count: number) => {
      const enough = beaten() + count
      return eventually(() => lost || beaten() >= enough)
    }
    await body({ server, client, lost: () => lost, beats })
    await client.close()
  } finally {
    await server.close()
  }
}

// Each waits for more than its server's patience: side by side.
describe.concurrent.each(Object.entries(ADDRESSES))('a session that is silent, over %s,', (_, address) => {
  it('is ended when it is so for too long', () =>
    withImpatient(address(), 400, { heartbeatInterval: 60_000 }, async ({ server, client }) => {
      await client.allocate(1)
      expect(server.store.free).toBe(0)
      await client.lost
      await eventually(() => server.store.free === 1)
    }))

  it('lives while it heartbeats', () =>
    withImpatient(address(), 900, { heartbeatInterval: 100 }, async ({ beats, lost }) => {
      // Between two of them are 100 ms: in all twice the server's patience.
      await beats(18)
      expect(lost()).toBe(false)
    }))

  it('heartbeats as often as the server wants to hear of it', () =>
    withImpatient(address(), 900, {}, async ({ beats, lost }) => {
      // A third of the server's patience is between two of them.
      await beats(6)
      expect(lost()).toBe(false)
    }))
})

// Not beside others, whose thread it is.
describe.each(Object.entries(ADDRESSES))('a session over %s', (_, address) => {
  it('outlives a standstill of the server, whose clients were not silent', () =>
    withImpatient(address(), 600, {}, async ({ server, beats, lost }) => {
      for (let i = 0; i < 2; i++) {
        // Both ends stand still: they share this thread.
        standStill(800)
        // A third of the server's patience is between two, and a quarter between its looks.
        await beats(2)
      }
      expect(lost()).toBe(false)
      expect(server.sessions).toBe(1)
    }))
})

describe.each(Object.entries(ADDRESSES))('what is refused over %s', (_name, listenAt) => {
  serve(listenAt)

  it('a data connection with a wrong token', async () => {
    const id = await ConnectionId.resolve(uri)
    try {
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      await expect(id.connect({ privateData: dataConnectionData(randomBytes(16)) })).rejects.toBeInstanceOf(
        ConnectionRejectedError,
      )
    } finally {
      id.close()
    }
  })

  it('a connection that is neither control nor data', async () => {
    const id = await ConnectionId.resolve(uri)
    try {
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      await expect(id.connect({ privateData: Buffer.from('who are you') })).rejects.toBeInstanceOf(
        ConnectionRejectedError,
      )
    } finally {
      id.close()
    }
  })

  it.each([
    ['bytes that are no message', Buffer.from('\xff\xff\xff\xff', 'latin1'), 'EPROTO'],
    ['allocate before hello', Buffer.from([0x12, 0x02, 0x08, 0x01]), 'EPROTO'],
    ['an empty request', Buffer.alloc(0), 'EPROTO'],
  ])('%s, and the server goes on', async (_, bytes, code) => {
    const connection = await RingConnection.connect(uri)
    const { failure } = control.Response.decode(await connection.request(bytes))
    expect(failure?.code).toBe(code)
    await connection.close()
    expect((await session()).freeSlabs).toBe(8)
  })

  it('more sessions than allowed', async () => {
    const small = new SwapServer({ memory: MIB, slabSize: MIB, maxSessions: 1 })
    try {
      const only = await small.listen(address())
      const one = await SwapServerSession.open([only])
      await expect(SwapServerSession.open([only])).rejects.toThrow(/at most 1 sessions/)
      await one.close()
    } finally {
      await small.close()
    }
  })
})

describe.each(Object.entries(ADDRESSES))('a server that ends, over %s,', (_, listenAt) => {
  serve(listenAt)

  it('says so to its clients, before their memory goes', async () => {
    const client = await session()
    const held: number[] = []
    client.lost.then(() => held.push(server.store.total - server.store.free))
    await client.allocate(2)
    expect(client.gone).toBe(false)
    await server.close()
    expect(client.gone).toBe(true)
    expect(await client.lost).toBe('the server has given up its memory: the server ends')
    expect(held).toEqual([2])
  })

  it('does not hang on one that does not hear it, or does not know what it hears', async () => {
    const answers = [() => new Promise<Uint8Array>(() => {}), () => new Uint8Array()]
    for (const answer of answers) {
      const connection = await RingConnection.connect(uri)
      connection.handle(answer)
      const hello = control.Request.encode({ hello: { version: 1 } }).finish()
      expect(control.Response.decode(await connection.request(hello)).hello?.epoch).toBe(server.epoch)
    }
    await server.close()
    expect(server.sessions).toBe(0)
  })
})
