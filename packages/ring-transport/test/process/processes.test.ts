import fc from 'fast-check'
import { firstValueFrom, map, take, toArray } from 'rxjs'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { growth } from '../../../../test/growth.js'
import { standStill } from '../../../../test/stand-still.js'
import { Poller, type PollerMode, RingConnection } from '../../src/index.js'
import { deviceOf, differing, HANG_MS, type Peer, pattern, sendAll, startPeer } from '../helpers/processes.js'
import { descriptors, residentBytes } from '../helpers/resources.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const peers: Peer[] = []
const connections: RingConnection[] = []
const pollers: Poller[] = []

const timeout = HANG_MS

async function connectTo(role: string, peerOptions: object = {}, options: object = {}) {
  const peer = await startPeer(role, peerOptions)
  peers.push(peer)
  return { peer, connection: await connect(peer, options) }
}

async function connect({ uri }: Peer, options: object = {}) {
  const connection = await RingConnection.connect(uri, { timeout, ...options })
  connections.push(connection)
  return connection
}

/** Peers that outlive their connections: those with the same options are one process, till the end of the file. */
const echoes = new Map<string, Promise<Peer>>()
async function echo(options: object = {}): Promise<Peer> {
  const key = JSON.stringify(options)
  const peer = echoes.get(key) ?? startPeer('echo', options)
  echoes.set(key, peer)
  return await peer
}
afterAll(async () => {
  for (const peer of echoes.values()) await (await peer).stop()
})

afterEach(async () => {
  await Promise.all(connections.splice(0).map((one) => one.close({ drain: false })))
  await Promise.all(peers.splice(0).map((one) => one.stop()))
  for (const poller of pollers.splice(0)) poller.close()
})

describe.each<PollerMode>(['guarded', 'adaptive', 'event', 'poll'])('between two processes, %s', (mode) => {
  let peer: Peer
  beforeAll(async () => {
    peer = await startPeer('echo', { mode, capacity: 65536 })
  })
  afterAll(() => peer.stop())

  describe.each(['immediate', 'send'] as const)('notified by %s', (notification) => {
    it('messages and requests of all sizes go both ways', async () => {
      const poller = new Poller(deviceOf('iwarp'), { mode })
      pollers.push(poller)
      const connection = await connect(peer, { poller, notification })
      expect(connection.notification).toBe(notification)
      const messages = Array.from({ length: effort(150) }, (_, i) =>
        pattern((i * i * 7) % connection.maxMessageLength, i),
      )
      const echoed = firstValueFrom(
        connection.messages.pipe(
          map((message) => message.copy()),
          take(messages.length),
          toArray(),
        ),
      )
      const asked = messages.slice(-50)
      const answers = Promise.all(asked.map((message) => connection.request(message, { timeout })))
      await sendAll(connection, messages)
      expect(differing(await echoed, messages)).toEqual([])
      expect(differing(await answers, asked)).toEqual([])
    })
  })
})

// The answer is here long before the time is up; this end has computed, and looks at it afterwards.
describe.each(PROVIDERS)('a request over %s whose end stands still', (provider) => {
  it.each<PollerMode>(['adaptive', 'event', 'caller', 'guarded'])('has its answer, %s', async (mode) => {
    const peer = await echo({ uri: listenUri(provider) })
    const poller = new Poller(deviceOf(provider), { mode })
    pollers.push(poller)
    const connection = await connect(peer, { poller })
    const data = pattern(100, 1)
    // Not the first in the life of the peer, which has 600 ms for it.
    await connection.request(data)
    const answer = connection.request(data, { timeout: 300 })
    connection.flush()
    standStill(600)
    expect(await answer).toEqual(data)
  })
})

describe('sizes', () => {
  it('of any sequence come back as they went', async () => {
    const connection = await connect(await echo({ capacity: 4096 }), { capacity: 8192 })
    const longest = Math.min(connection.maxMessageLength, 8192 / 2 - 16)
    const sizes = fc.array(fc.oneof(fc.nat(longest), fc.constantFrom(0, 47, 48, 49, longest)), {
      maxLength: 60,
    })
    await fc.assert(
      fc.asyncProperty(sizes, async (lengths) => {
        const messages = lengths.map((length, i) => pattern(length, i))
        if (messages.length === 0) return
        const echoed = firstValueFrom(
          connection.messages.pipe(
            map((message) => message.copy()),
            take(messages.length),
            toArray(),
          ),
        )
        await sendAll(connection, messages)
        const got = await echoed
        expect(got.map(({ length }) => length)).toEqual(lengths)
        expect(differing(got, messages)).toEqual([])
      }),
      { numRuns: effort(20) },
    )
  })
})

describe('a slow consumer', () => {
  it('stalls the sender, and misses nothing', async () => {
    const { connection, peer } = await connectTo('slow', { capacity: 8192 })
    const messages = Array.from({ length: 300 }, (_, i) => {
      const bytes = new Uint8Array(4 + ((i * 131) % 1500))
      new DataView(bytes.buffer).setUint32(0, i)
      return bytes
    })
    expect(await sendAll(connection, messages)).toBeGreaterThan(10)
    const sum = messages.reduce((total, { length }) => total + length, 0)
    const state = async () =>
      JSON.parse(new TextDecoder().decode(await connection.request(new Uint8Array(), { timeout })))
    await expect.poll(state, { timeout }).toEqual({ count: 300, sum })
    await connection.close({ timeout })
    expect(await peer.told()).toEqual({ closed: 'in order' })
  })

  it('does not stall another connection of the same poller', async () => {
    const { connection: slow } = await connectTo('silent', { capacity: 4096 })
    const quick = await connect(await echo({ capacity: 16384 }))
    const goesOn = async () => {
      const messages = Array.from({ length: 50 }, (_, i) => pattern(500, i))
      const answers: Uint8Array[] = []
      for (const message of messages) answers.push(await quick.request(message, { timeout }))
      expect(differing(answers, messages)).toEqual([])
    }
    let stalled = false
    void sendAll(
      slow,
      Array.from({ length: 20 }, () => new Uint8Array(100)),
    )
      .then(() => slow.request(new Uint8Array(1000), { timeout }))
      .catch(() => {})
    await goesOn()
    while (!stalled) {
      slow.request(new Uint8Array(1500)).catch(() => {})
      stalled = !slow.send(new Uint8Array(1500))
    }
    await goesOn()
  })
})

describe('a peer that dies', () => {
  it('rejects requests promptly with ECONNRESET and ends the connection', async () => {
    const { connection } = await connectTo('dies')
    // Not at its deadline, which it would hear of as ETIMEDOUT.
    await expect(connection.request(new Uint8Array(10), { timeout })).rejects.toMatchObject({
      name: 'VerbsError',
      code: 'ECONNRESET',
    })
    expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
  })

  it('while much is under way ends everything that waits', async () => {
    const { connection, peer } = await connectTo('silent', { capacity: 4096 })
    const requests = Array.from({ length: 50 }, () =>
      connection.request(new Uint8Array(500), { timeout }).then(
        () => 'answered',
        (failure) => failure.code,
      ),
    )
    await peer.told()
    // While something is claimed nothing else is taken.
    while (connection.claim(1) === undefined) await connection.writable()
    expect(connection.send(new Uint8Array(1))).toBe(false)
    const writable = connection.writable().catch((failure) => failure.code)
    const completed = firstValueFrom(connection.messages.pipe(toArray()))
    await peer.stop()
    expect(await Promise.all(requests)).toEqual(Array.from({ length: 50 }, () => 'ECONNRESET'))
    expect(await writable).toBe('ECONNRESET')
    expect(await completed).toEqual([])
    await connection.close()
  })

  it('is noticed by a server, whose other connections go on', async () => {
    const { connection: stays, peer } = await connectTo('echo')
    const leaves = await connect(peer)
    await leaves.close({ drain: false })
    expect(await peer.told()).toEqual({ closed: 'ECONNRESET' })
    expect(await stays.request(new Uint8Array([1]), { timeout })).toEqual(new Uint8Array([1]))
  })

  it('may exit with connections and pollers alive', async () => {
    const { connection, peer } = await connectTo('exits')
    connection.send(new Uint8Array(1))
    expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
    await expect.poll(() => peer.process.exitCode).toBe(7)
  })
})

describe('many connections', () => {
  it('one after another leak neither descriptors nor memory', async () => {
    const peer = await echo({ capacity: 2 ** 17 })
    const once = async () => {
      const connection = await RingConnection.connect(peer.uri, { timeout, capacity: 2 ** 17 })
      expect(await connection.request(new Uint8Array([9]), { timeout })).toEqual(new Uint8Array([9]))
      await connection.close({ timeout })
    }
    for (let i = 0; i < 30; i++) await once()
    const before = descriptors()
    const connections = effort(150)
    const many = async () => {
      for (let i = 0; i < connections; i++) await once()
    }
    // Two fifths of what their rings and staging regions would be.
    const limit = connections * 2 * 2 ** 17 * 0.4
    expect(await growth(residentBytes, many, limit)).toBeLessThan(limit)
    expect(descriptors()).toBeLessThanOrEqual(before + 3)
  })

  it('at a time share one poller', async () => {
    const peer = await echo({ capacity: 16384 })
    const many = await Promise.all(Array.from({ length: 60 }, () => connect(peer, { capacity: 16384 })))
    const answers = await Promise.all(
      many.flatMap((connection, i) =>
        Array.from({ length: 20 }, (_, k) => connection.request(pattern(k * 50, i), { timeout })),
      ),
    )
    const asked = Array.from({ length: 1200 }, (_, at) => pattern((at % 20) * 50, Math.floor(at / 20)))
    expect(differing(answers, asked)).toEqual([])
  })
})
