import { afterEach, describe, expect, it } from 'vitest'
import { RingClient, RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { Sessions } from '../../src/server/sessions.js'
import { follow } from '../helpers/states.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const ID = 'feedfacecafe0001'
const open: { close(options?: { drain?: boolean }): Promise<void> }[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close({ drain: false })))
})
const bytes = (text: string) => new TextEncoder().encode(text)

describe.each(PROVIDERS)('a server over %s', (provider) => {
  /** A server that keeps its connections, and a client's connection of any epoch. */
  async function serve(options: Partial<RingServerOptions> = {}) {
    const arrived: RingConnection[] = []
    const server = await RingServer.listen(listenUri(provider), {
      onConnection: (connection) => arrived.push(connection),
      ...options,
    })
    open.push(server)
    const connect = async (epoch: number, id = ID) => {
      const connection = await RingConnection.connect(server.uri, { session: { id, epoch } })
      open.push(connection)
      return connection
    }
    return { server, arrived, connect }
  }

  it('breaks the connection of a lower epoch when a higher one comes', async () => {
    const { arrived, connect, server } = await serve()
    const first = await connect(1)
    await expect.poll(() => arrived.length).toBe(1)
    const seen = follow((arrived[0] as RingConnection).states)
    const second = await connect(5)
    expect(await first.closed).toMatchObject({ code: 'ECONNRESET' })
    expect(await arrived[0]?.closed).toMatchObject({ code: 'ESTALE' })
    expect(seen).toEqual(['open 1', 'lost 1'])
    expect(second.isOpen).toBe(true)
    await expect.poll(() => server.counts).toMatchObject({ connections: 1, accepted: 2, refused: 0 })
  })

  it('refuses an epoch that is not higher, while it is connected and after', async () => {
    const { connect, server } = await serve()
    const current = await connect(5)
    for (const epoch of [5, 4])
      await expect(connect(epoch)).rejects.toMatchObject({
        code: 'ECONNREFUSED',
        message: expect.stringContaining(`ESTALE: epoch ${epoch} is not above 5`),
      })
    expect(current.isOpen).toBe(true)
    await current.close()
    await expect(connect(5)).rejects.toThrow('ESTALE')
    expect(server.counts).toMatchObject({ accepted: 1, refused: 3, stale: 3 })
    expect((await connect(6)).isOpen).toBe(true)
  })

  it('keeps sessions apart, and connections of none', async () => {
    const { arrived, connect, server } = await serve()
    await connect(3)
    await connect(1, '0000000000000001')
    open.push(await RingConnection.connect(server.uri))
    await expect.poll(() => arrived.length).toBe(3)
    expect(arrived.map(({ isOpen }) => isOpen)).toEqual([true, true, true])
  })

  it('delivers nothing of an older epoch once a newer one is there, whoever takes it', async () => {
    const delivered: string[] = []
    const { arrived, connect } = await serve({
      onConnection(connection) {
        const { epoch } = connection.session as { epoch: number }
        delivered.push(`epoch ${epoch}`)
        arrived.push(connection)
        // Epoch 1 has no consumer until 2 is there: what it was sent waits in its ring.
        if (epoch === 1) return
        arrived[0]?.messages.subscribe((message) => delivered.push(`late ${message.text()}`))
        connection.messages.subscribe((message) => delivered.push(message.text()))
      },
    })
    const first = await connect(1)
    await expect.poll(() => arrived.length).toBe(1)
    for (let i = 0; i < 50; i++) first.send(bytes('of epoch 1'))
    first.flush()
    const second = await connect(2)
    second.send(bytes('of epoch 2'))
    await expect.poll(() => delivered.length).toBeGreaterThan(2)
    expect(delivered).toEqual(['epoch 1', 'epoch 2', 'of epoch 2'])
  })

  it('stays with the highest of many that come at once', async () => {
    const { arrived, connect } = await serve()
    const epochs = [3, 9, 1, 7, 10, 2, 8, 4, 6, 5]
    const results = await Promise.allSettled(epochs.map((epoch) => connect(epoch)))
    const highest = results[epochs.indexOf(10)]
    expect(highest?.status).toBe('fulfilled')
    await expect
      .poll(() => arrived.filter(({ isOpen }) => isOpen).map(({ session }) => session?.epoch))
      .toEqual([10])
    // Each that was served came later than, and higher than, the one before.
    const served = arrived.map(({ session }) => session?.epoch ?? 0)
    expect(served).toEqual([...served].sort((a, b) => a - b))
  })

  it('stays with the higher of two that it decides about in one turn, whichever is decided first', async () => {
    const verdicts: ((verdict: true) => void)[] = []
    const { arrived, connect, server } = await serve({
      admit: () => new Promise((resolve) => verdicts.push(resolve)),
    })
    const higher = connect(6)
    await expect.poll(() => verdicts.length).toBe(1)
    const lower = connect(5).catch((failure) => failure)
    await expect.poll(() => verdicts.length).toBe(2)
    for (const decide of verdicts) decide(true)
    expect(await lower).toMatchObject({
      code: 'ECONNREFUSED',
      message: expect.stringContaining('ESTALE: epoch 5 is not above 6'),
    })
    expect((await higher).isOpen).toBe(true)
    await expect.poll(() => arrived.map(({ session }) => session?.epoch)).toEqual([6])
    expect(server.counts).toMatchObject({ accepted: 1, refused: 1, stale: 1 })
  })

  it('that is full still takes the next epoch of one that it serves', async () => {
    const { connect, arrived } = await serve({ maxConnections: 1 })
    await connect(1)
    await expect.poll(() => arrived.length).toBe(1)
    await expect(connect(1, '0000000000000001')).rejects.toThrow('too many connections')
    expect((await connect(2)).isOpen).toBe(true)
  })

  it('that does not admit a client leaves its older connection alone', async () => {
    const { connect, arrived } = await serve({ admit: () => (arrived.length === 0 ? true : 'not you') })
    const first = await connect(1)
    await expect.poll(() => arrived.length).toBe(1)
    await expect(connect(2)).rejects.toThrow('not you')
    expect(first.isOpen).toBe(true)
    expect(arrived[0]?.isOpen).toBe(true)
  })
})

describe('a server over iwarp that takes no ring of the usual 4 MiB', () => {
  async function serve() {
    const arrived: RingConnection[] = []
    const server = await RingServer.listen(listenUri('iwarp'), {
      maxPeerCapacity: 2 ** 20,
      onConnection: (connection) => arrived.push(connection),
    })
    open.push(server)
    return { server, arrived }
  }

  it('serves a client, whose second try has the same epoch', async () => {
    const { arrived, server } = await serve()
    const client = new RingClient(server.uri)
    open.push(client)
    expect((await client.opened()).session).toEqual({ id: client.sessionId, epoch: 1 })
    await expect.poll(() => arrived.map(({ session }) => session?.epoch)).toEqual([1])
    expect(server.counts).toMatchObject({ accepted: 1, refused: 1, stale: 0 })
  })

  it('refuses the ring of a higher epoch, and leaves the older connection alone', async () => {
    const { arrived, server } = await serve()
    const connect = (epoch: number, capacity: number) =>
      RingConnection.connect(server.uri, { session: { id: ID, epoch }, capacity })
    const first = await connect(1, 2 ** 20)
    open.push(first)
    await expect.poll(() => arrived.length).toBe(1)
    await expect(connect(2, 2 ** 22)).rejects.toThrow('EMSGSIZE: capacity > maxPeerCapacity 1048576')
    expect(first.isOpen).toBe(true)
    expect(arrived[0]?.isOpen).toBe(true)
    const second = await connect(2, 2 ** 20)
    open.push(second)
    expect(second.isOpen).toBe(true)
  })
})

describe('the memory of sessions', () => {
  const id = (number: number) => number.toString(16).padStart(16, '0')

  it('is bounded: the one that connected longest ago is forgotten first', async () => {
    const sessions = new Sessions()
    for (let i = 1; i <= 4096; i++) await sessions.enter({ id: id(i), epoch: 9 })
    await sessions.enter({ id: id(1), epoch: 10 })
    for (let i = 1; i <= 4096; i++) expect(sessions.refusal({ id: id(i), epoch: 9 })).toMatch(/^ESTALE/)
    await sessions.enter({ id: id(5000), epoch: 1 })
    expect(sessions.refusal({ id: id(2), epoch: 1 })).toBeUndefined()
    for (const i of [1, 3, 4096, 5000]) expect(sessions.refusal({ id: id(i), epoch: 1 })).toMatch(/^ESTALE/)
  })

  it('says why in what a refusal has room for', async () => {
    const sessions = new Sessions()
    await sessions.enter({ id: id(1), epoch: 2 ** 32 - 1 })
    expect(sessions.refusal({ id: id(1), epoch: 2 ** 32 - 1 })?.length).toBeLessThanOrEqual(48)
  })
})
