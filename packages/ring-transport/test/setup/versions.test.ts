// Ends of this version and of those before, in either place, over frames of the older. Costs a second.
import { describe, expect, it } from 'vitest'
import { RingClient, RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const OLD = { wireVersions: [2] } as const
const BEFORE = { wireVersions: [3, 2] } as const
const timeout = HANG_MS

const echo = (options: Partial<RingServerOptions>, provider: (typeof PROVIDERS)[number]) =>
  RingServer.listen(listenUri(provider), {
    onConnection(connection) {
      connection.handle((request) => request.data)
      connection.messages.subscribe(
        ({ data, immediate }) => void connection.send(data.subarray(0, 100), immediate),
      )
    },
    ...options,
  })

describe.each(PROVIDERS)('over %s', (provider) => {
  it.each([
    ['an old server', OLD, {}],
    ['an old client', {}, OLD],
    ['a pair of old ones', OLD, OLD],
    ['a server of the version before', BEFORE, {}],
    ['a client of the version before', {}, BEFORE],
    ['two that are a version apart', OLD, BEFORE],
    ['a pair of new ones', {}, {}],
  ] as const)('%s: messages, requests, large messages, and the same binding', async (_, there, here) => {
    await using server = await echo({ ...there, capacity: 8192 }, provider)
    await using connection = await RingConnection.connect(server.uri, { ...here, timeout })
    const lengths = [0, 1, 7, 8, 9, 47, 48, 49, 64, 1000, connection.maxMessageLength]
    for (let round = 0; round < 20; round++) {
      const answers = lengths.map((length, i) => connection.request(pattern(length, i), { timeout }))
      expect(await Promise.all(answers)).toEqual(
        lengths.map((length, i) => new Uint8Array(pattern(length, i))),
      )
    }
    const echoed = new Promise<[number, number]>((resolve) =>
      connection.messages.subscribe(({ length, immediate }) => resolve([length, immediate])),
    )
    while (!connection.send(pattern(100, 1), 0xffff_fff1)) await connection.writable()
    expect(await echoed).toEqual([100, 0xffff_fff1])
    await connection.transmit(pattern(300_000, 2), { timeout })
    const [accepted] = server.connections
    expect(accepted?.channelBinding).toEqual(connection.channelBinding)
  })

  it('a client connects again to a server that has been brought up to date', async () => {
    const old = await echo(OLD, provider)
    const { uri } = old
    const client = new RingClient(uri, { reconnect: { min: 1, max: 20 }, timeout })
    expect(await client.request(new Uint8Array([1]))).toEqual(new Uint8Array([1]))
    await old.close({ drain: false })
    const fresh = await RingServer.listen(uri, {
      onConnection: (connection) => connection.handle(() => new Uint8Array([3])),
    })
    await expect
      .poll(() => client.request(new Uint8Array([1]), { timeout: 5_000 }).catch(() => undefined))
      .toEqual(new Uint8Array([3]))
    await client.close()
    await fresh.close()
  })
})

it('who is refused for another reason is not asked twice', async () => {
  let asked = 0
  const admit = () => {
    asked++
    return 'not today'
  }
  await using server = await RingServer.listen(listenUri('iwarp'), { onConnection() {}, admit })
  await expect(RingConnection.connect(server.uri)).rejects.toMatchObject({ message: /not today/ })
  expect(asked).toBe(1)
})

it('who speaks the new one alone is refused by an old server, in its words', async () => {
  await using server = await echo(OLD, 'iwarp')
  const connecting = RingConnection.connect(server.uri, { wireVersions: [4] })
  await expect(connecting).rejects.toMatchObject({ code: 'ECONNREFUSED', message: /malformed request/ })
})
