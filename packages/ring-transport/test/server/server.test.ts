import { once } from 'node:events'
import { connect } from 'node:net'
import { ConnectionId, type ConnectionRequest, Listener } from '@rdmakit/verbs'
import { afterEach, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import {
  acceptRing,
  applicationData,
  isRingRequest,
  Poller,
  RingConnection,
  RingServer,
  type RingServerOptions,
} from '../../src/index.js'
import { POLLER_MODES } from '../../src/polling/poller-options.js'
import { encodeHandshake } from '../../src/setup/handshake.js'
import { Windows } from '../../src/setup/ring-layout.js'
import { deviceOf, sendAll } from '../helpers/processes.js'

const servers: { close(options?: object): unknown }[] = []
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close({ drain: false })
})

async function listen(options: Partial<RingServerOptions> = {}): Promise<RingServer> {
  const server = await RingServer.listen('iwarp://127.0.0.1:0', { onConnection: () => {}, ...options })
  servers.push(server)
  return server
}

/** An MPA request, peer to peer, of a ring connection (RFC 5044 §7.1, RFC 6581 §4). */
function halfMadeRequest(): Uint8Array {
  const handshake = encodeHandshake({
    version: 3,
    writeWithImmediate: true,
    windows: new Windows(16, 1),
    receiveDepth: 128,
    longest: 0,
    remoteKey: 0x01000101,
    address: 0x7f0000000000n,
    session: undefined,
    applicationData: new Uint8Array(),
  })
  const head = Buffer.alloc(24)
  head.write('MPA ID Req Frame', 'latin1')
  head.writeUInt16BE(0x5002, 16)
  head.writeUInt16BE(4 + handshake.length, 18)
  head.writeUInt32BE(0x8010_8010, 20)
  return Buffer.concat([head, handshake])
}

describe('a server', () => {
  it('listens at several addresses; a client takes the first that answers', async () => {
    const server = await RingServer.listen(['iwarp://127.0.0.1:0', 'iwarp://127.0.0.1:0'], {
      onConnection: () => {},
    })
    servers.push(server)
    expect(new Set(server.uris).size).toBe(2)
    for (const uri of server.uris) await (await RingConnection.connect(uri)).close()
    const connection = await RingConnection.connect(['iwarp://127.0.0.1:1', server.uri])
    expect(connection.peerUri).toBe(server.uri)
    await connection.close()
    await expect(RingConnection.connect(['iwarp://127.0.0.1:1', 'iwarp://127.0.0.1:2'])).rejects.toThrow(
      AggregateError,
    )
  })

  it('and its clients see the application data of each other', async () => {
    const seen: unknown[] = []
    const server = await listen({
      applicationData: new Uint8Array([1, 2]),
      admit: (data, peer) => {
        seen.push(data, peer)
        return true
      },
    })
    const connection = await RingConnection.connect(server.uri, { applicationData: new Uint8Array([3]) })
    expect(connection.applicationData).toEqual(new Uint8Array([1, 2]))
    expect(seen).toEqual([new Uint8Array([3]), expect.stringMatching(/^iwarp:\/\/127\.0\.0\.1:\d+$/)])
    await connection.close()
  })

  it('refuses whom it does not admit, and says why', async () => {
    const server = await listen({ admit: () => 'not today' })
    await expect(RingConnection.connect(server.uri)).rejects.toMatchObject({
      code: 'ECONNREFUSED',
      message: expect.stringContaining('not today'),
    })
  })

  it('refuses more connections than it may have, until one leaves', async () => {
    const server = await listen({ maxConnections: 1 })
    const first = await RingConnection.connect(server.uri)
    await expect(RingConnection.connect(server.uri)).rejects.toThrow('too many connections')
    await first.close()
    await expect.poll(() => server.connections.size).toBe(0)
    await (await RingConnection.connect(server.uri)).close()
  })

  it('has the oldest of those that are on their way make room', async () => {
    const server = await listen({ maxConnections: 1 })
    const halfMade = connect(Number(new URL(server.uri).port), '127.0.0.1')
    const thrownOut = once(halfMade, 'close')
    halfMade.on('error', () => {}).resume()
    // Its first FPDU would tell that it has heard the answer, and never comes (RFC 6581 §4.3).
    halfMade.write(halfMadeRequest())
    await expect.poll(() => server.counts.arriving).toBe(1)
    await (await RingConnection.connect(server.uri)).close()
    await thrownOut
    await expect.poll(() => server.counts).toMatchObject({ arriving: 0, accepted: 1, refused: 1 })
  })

  it('refuses a ring that would cost it too much memory', async () => {
    const failures: unknown[] = []
    const server = await listen({ maxPeerCapacity: 65536, onError: (failure) => failures.push(failure) })
    await expect(RingConnection.connect(server.uri, { capacity: 131072 })).rejects.toThrow('EMSGSIZE')
    expect(failures).toEqual([expect.objectContaining({ code: 'EMSGSIZE' })])
  })

  it('refuses what is no ring request', async () => {
    const failures: unknown[] = []
    const server = await listen({ onError: (failure) => failures.push(failure) })
    const id = await ConnectionId.resolve(server.uri)
    const pd = id.context.allocateProtectionDomain()
    id.createQueuePair(pd, { sendQueue: id.context.createCompletionQueue({ entries: 300 }) })
    await expect(id.connect({ privateData: new Uint8Array(24) })).rejects.toMatchObject({
      code: 'ECONNREFUSED',
    })
    expect(failures).toEqual([expect.objectContaining({ code: 'EPROTO' })])
    id.close()
    pd.close()
  })

  it('goes on when onConnection throws; that connection ends', async () => {
    const failures: unknown[] = []
    let first = true
    const server = await listen({
      onConnection() {
        if (first) {
          first = false
          throw new Error('not ready')
        }
      },
      onError: (failure) => failures.push(failure),
    })
    const unlucky = await RingConnection.connect(server.uri)
    expect(await unlucky.closed).toMatchObject({ code: 'ECONNRESET' })
    expect(failures).toEqual([new Error('not ready')])
    await (await RingConnection.connect(server.uri)).close()
  })

  it('takes many connections of the default depths at a time', async () => {
    const server = await listen({
      capacity: 4096,
      onConnection: (one) => one.handle((request) => request.copy()),
    })
    const many = await Promise.all(
      Array.from({ length: 100 }, () => RingConnection.connect(server.uri, { capacity: 4096 })),
    )
    const answers = await Promise.all(many.map((one, at) => one.request(Uint8Array.of(at))))
    expect(answers.map(([at]) => at)).toEqual(many.map((_, at) => at))
    expect(server.counts).toMatchObject({ connections: 100, accepted: 100, refused: 0 })
    await Promise.all(many.map((one) => one.close()))
  })

  it('that closes takes its connections with it', async () => {
    const server = await listen()
    const connections = await Promise.all([
      RingConnection.connect(server.uri),
      RingConnection.connect(server.uri),
    ])
    await server.close()
    await server.close()
    expect(await Promise.all(connections.map(({ closed }) => closed))).toEqual([undefined, undefined])
    await expect(RingConnection.connect(server.uri)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  })
})

describe('acceptRing', () => {
  it('takes ring requests of a listener that sorts them itself', async () => {
    const requests: ConnectionRequest[] = []
    const listener = await Listener.listen('iwarp://127.0.0.1:0', async (request) => {
      requests.push(request)
      if (!isRingRequest(request.privateData)) return request.id.reject()
      const connection = await acceptRing(request)
      connection.handle(() => applicationData(request.privateData))
    })
    servers.push(listener)
    const connection = await RingConnection.connect(listener.uri, { applicationData: new Uint8Array([42]) })
    expect(await connection.request(new Uint8Array())).toEqual(new Uint8Array([42]))
    await connection.close()
  })
})

describe('options', () => {
  it.each([
    ['capacity', { capacity: 5000 }],
    ['capacity', { capacity: 2 ** 27 }],
    ['receiveDepth', { receiveDepth: 4 }],
    ['sendDepth', { sendDepth: 8 }],
    ['maxInlineData', { maxInlineData: -1 }],
    ['applicationData', { applicationData: new Uint8Array(21) }],
    ['notification', { notification: 'pigeon' as 'send' }],
  ])('out of range name the option: %s', async (name, options) => {
    await expect(RingConnection.connect('iwarp://127.0.0.1:1', options)).rejects.toThrow(name)
    await expect(RingServer.listen('iwarp://127.0.0.1:0', { onConnection() {}, ...options })).rejects.toThrow(
      name,
    )
  })

  it.each([0, 65_536, 1.5])('of a listener too: a backlog of %s', async (backlog) => {
    const options = { onConnection() {}, backlog }
    await expect(RingServer.listen('iwarp://127.0.0.1:0', options)).rejects.toThrow('backlog')
  })

  it.each([
    ['mode', { mode: 'sleepy' as 'poll' }],
    ['cpu', { cpu: -2 }],
    ['descriptors', { descriptors: 100 }],
    ['spinMicroseconds', { spinMicroseconds: 1e6 }],
    ['maxConnections', { maxConnections: 0 }],
    ['completionQueueEntries', { completionQueueEntries: 1 }],
  ])('of a poller too: %s', (name, options) => {
    expect(() => new Poller(deviceOf('iwarp'), options)).toThrow(name)
  })
})

describe('a poller', () => {
  it.each(POLLER_MODES)('of mode %s is named, and shared by who names it', async (mode) => {
    const server = await listen()
    await using one = await RingConnection.connect(server.uri, { poller: mode })
    await using other = await RingConnection.connect(server.uri, { poller: mode })
    const poller = Poller.shared(one.context, mode)
    expect(poller.mode).toBe(mode)
    // And the server's ends, if it has the same poller.
    expect(poller.connections).toBeGreaterThanOrEqual(2)
    expect(other.context).toBe(one.context)
  })

  it('is guarded where none is named', async () => {
    const server = await listen()
    await using connection = await RingConnection.connect(server.uri)
    expect(Poller.shared(connection.context).connections).toBeGreaterThan(0)
    expect(Poller.shared(connection.context).mode).toBe('guarded')
  })

  it('of a mode that there is not is refused', async () => {
    const server = await listen()
    const options = { poller: 'sleepy' as 'poll' }
    await expect(RingConnection.connect(server.uri, options)).rejects.toThrow(
      'poll, event, adaptive, caller, guarded',
    )
  })

  it.each([undefined, 'adaptive'] as const)('of mode %s is named by a function, too', async (mode) => {
    const server = await listen()
    await using one = await RingConnection.connect(server.uri, { poller: () => mode })
    expect(Poller.shared(one.context, mode).connections).toBeGreaterThan(0)
  })

  it.each([null, {}, 7])('that is %s is refused', async (poller) => {
    const server = await listen()
    for (const choice of [poller, () => poller])
      await expect(RingConnection.connect(server.uri, { poller: choice as never })).rejects.toMatchObject({
        name: 'UsageError',
        message: expect.stringMatching(/poller must be a mode/),
      })
  })

  it('refuses a connection that its completion queue has no room for', async () => {
    const server = await listen()
    const poller = new Poller(deviceOf('iwarp'), { completionQueueEntries: 300 })
    const first = await RingConnection.connect(server.uri, { poller })
    await expect(RingConnection.connect(server.uri, { poller })).rejects.toMatchObject({ code: 'ENOSPC' })
    expect(() => poller.close()).toThrow('close them first')
    await first.close()
    const second = await RingConnection.connect(server.uri, { poller })
    await second.close()
    poller.close()
    poller.close()
    await expect(RingConnection.connect(server.uri, { poller })).rejects.toThrow('closed')
  })

  it('with few descriptors delays messages and drops none', async () => {
    const messages = effort(5_000)
    const poller = new Poller(deviceOf('iwarp'), { descriptors: 64, cpu: 0 })
    const server = await listen({ poller, onConnection: (one) => one.messages.subscribe(() => count++) })
    let count = 0
    const connection = await RingConnection.connect(server.uri)
    await sendAll(
      connection,
      Array.from({ length: messages }, (_, i) => new Uint8Array(i % 100)),
    )
    await expect.poll(() => count).toBe(messages)
    await connection.close()
    await server.close()
    poller.close()
  })

  it('pinned to a CPU that is not there says so', () => {
    expect(() => new Poller(deviceOf('iwarp'), { cpu: 1023 })).toThrow(/EINVAL/)
  })
})
