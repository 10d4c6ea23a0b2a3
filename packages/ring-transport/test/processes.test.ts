import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { firstValueFrom, map, take, toArray } from 'rxjs'
import { afterEach, describe, expect, it } from 'vitest'
import { Poller, type PollerMode, RingConnection } from '../src/index.js'
import { iwarpDevice, type Peer, pattern, sendAll, startPeer } from './helpers/processes.js'
import { resources } from './helpers/resources.js'

const peers: Peer[] = []
const connections: RingConnection[] = []
const pollers: Poller[] = []

async function connectTo(role: string, peerOptions: object = {}, options: object = {}) {
  const peer = await startPeer(role, peerOptions)
  peers.push(peer)
  const connection = await RingConnection.connect(peer.uri, options)
  connections.push(connection)
  return { peer, connection }
}

afterEach(async () => {
  await Promise.all(connections.splice(0).map((one) => one.close({ drain: false })))
  await Promise.all(peers.splice(0).map((one) => one.stop()))
  for (const poller of pollers.splice(0)) poller.close()
})

describe.each<PollerMode>(['adaptive', 'event', 'poll'])('between two processes, %s', (mode) => {
  describe.each(['immediate', 'send'] as const)('notified by %s', (notification) => {
    it('messages and requests of all sizes go both ways', async () => {
      const poller = new Poller(iwarpDevice(), { mode })
      pollers.push(poller)
      const { connection } = await connectTo('echo', { mode, capacity: 65536 }, { poller, notification })
      expect(connection.notification).toBe(notification)
      const messages = Array.from({ length: 400 }, (_, i) =>
        pattern((i * i * 7) % connection.maxMessageLength, i),
      )
      const echoed = firstValueFrom(
        connection.messages.pipe(
          map((message) => message.copy()),
          take(messages.length),
          toArray(),
        ),
      )
      const requests = Promise.all(messages.slice(0, 100).map((message) => connection.request(message)))
      await sendAll(connection, messages)
      expect(Buffer.concat(await echoed).equals(Buffer.concat(messages))).toBe(true)
      expect(Buffer.concat(await requests).equals(Buffer.concat(messages.slice(0, 100)))).toBe(true)
    })
  })
})

describe('sizes', () => {
  it('of any sequence come back as they went', async () => {
    const { connection } = await connectTo('echo', { capacity: 4096 }, { capacity: 8192 })
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
        expect(Buffer.concat(got).equals(Buffer.concat(messages))).toBe(true)
      }),
      { numRuns: 60 },
    )
  })
})

describe('a slow consumer', () => {
  it('stalls the sender, and misses nothing', async () => {
    const { connection, peer } = await connectTo('slow', { capacity: 8192 })
    const messages = Array.from({ length: 600 }, (_, i) => {
      const bytes = new Uint8Array(4 + ((i * 131) % 1500))
      new DataView(bytes.buffer).setUint32(0, i)
      return bytes
    })
    expect(await sendAll(connection, messages)).toBeGreaterThan(10)
    const sum = messages.reduce((total, { length }) => total + length, 0)
    const state = async () => JSON.parse(new TextDecoder().decode(await connection.request(new Uint8Array())))
    await expect.poll(state, { timeout: 5000 }).toEqual({ count: 600, sum })
    await connection.close()
    expect(await peer.told()).toEqual({ closed: 'in order' })
  })

  it('does not stall another connection of the same poller', async () => {
    const { connection: slow } = await connectTo('silent', { capacity: 4096 })
    const { connection: quick } = await connectTo('echo')
    let stalled = false
    void sendAll(
      slow,
      Array.from({ length: 20 }, () => new Uint8Array(100)),
    )
      .then(() => slow.request(new Uint8Array(1000), { timeout: 10_000 }))
      .catch(() => {})
    for (let i = 0; i < 200; i++) expect(await quick.request(pattern(500, i))).toEqual(pattern(500, i))
    while (!stalled) {
      slow.request(new Uint8Array(1500)).catch(() => {})
      stalled = !slow.send(new Uint8Array(1500))
    }
    for (let i = 0; i < 200; i++) expect(await quick.request(pattern(500, i))).toEqual(pattern(500, i))
  })
})

describe('a peer that dies', () => {
  it('rejects requests promptly with ECONNRESET and ends the connection', async () => {
    const { connection } = await connectTo('dies')
    const before = performance.now()
    await expect(connection.request(new Uint8Array(10))).rejects.toMatchObject({
      name: 'VerbsError',
      code: 'ECONNRESET',
    })
    expect(performance.now() - before).toBeLessThan(2000)
    expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
  })

  it('while much is under way ends everything that waits', async () => {
    const { connection, peer } = await connectTo('silent', { capacity: 4096 })
    const requests = Array.from({ length: 50 }, () =>
      connection.request(new Uint8Array(500), { timeout: 20_000 }).then(
        () => 'answered',
        (failure) => failure.code,
      ),
    )
    await sleep(50)
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
    const leaves = await RingConnection.connect(peer.uri)
    await leaves.close({ drain: false })
    expect(await peer.told()).toEqual({ closed: 'ECONNRESET' })
    expect(await stays.request(new Uint8Array([1]))).toEqual(new Uint8Array([1]))
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
    const { peer } = await connectTo('echo', { capacity: 65536 })
    const once = async () => {
      const connection = await RingConnection.connect(peer.uri, { capacity: 65536 })
      expect(await connection.request(new Uint8Array([9]))).toEqual(new Uint8Array([9]))
      await connection.close()
    }
    for (let i = 0; i < 30; i++) await once()
    const before = await resources()
    for (let i = 0; i < 300; i++) await once()
    const after = await resources()
    expect(after.descriptors).toBeLessThanOrEqual(before.descriptors + 3)
    // 300 rings and staging regions of 64 KiB would be 38 MiB.
    expect(after.bytes - before.bytes).toBeLessThan(16 * 2 ** 20)
  })

  it('at a time share one poller', async () => {
    const { peer } = await connectTo('echo', { capacity: 16384 })
    const many = await Promise.all(
      Array.from({ length: 60 }, () => RingConnection.connect(peer.uri, { capacity: 16384 })),
    )
    connections.push(...many)
    const answers = await Promise.all(
      many.flatMap((connection, i) =>
        Array.from({ length: 20 }, (_, k) => connection.request(pattern(k * 50, i))),
      ),
    )
    expect(answers).toHaveLength(1200)
    for (const [at, answer] of answers.entries())
      expect(answer).toEqual(pattern((at % 20) * 50, Math.floor(at / 20)))
  })
})
