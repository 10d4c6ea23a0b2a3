// A ring's windows: small for who says little, and larger as they are used. Costs two seconds.
import { readFileSync } from 'node:fs'
import { deferred } from '@rdmakit/verbs/internal'
import { describe, expect, it } from 'vitest'
import { RingConnection, type RingMessage, RingServer } from '../../src/index.js'
import { pattern } from '../helpers/processes.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

/**
 * Bytes that are resident of the memory of regions, which no fork copies (proc_pid_smaps(5), VmFlags `dc`). Those of rings are
 * larger than 1 MiB; V8's pages, which a newer kernel does not copy either, and the segments of queue pairs are smaller.
 */
function memory(): number {
  const smaps = readFileSync('/proc/self/smaps', 'utf8')
  const mappings = smaps.matchAll(/^Size: +(\d+) kB.*?^Rss: +(\d+) kB$.*?^VmFlags:([^\n]*)$/gms)
  return [...mappings].reduce(
    (sum, [, size, rss, flags]) =>
      sum + (Number(size) > 1024 && / dc\b/.test(flags as string) ? 1024 * Number(rss) : 0),
    0,
  )
}

describe.each(PROVIDERS)('over %s', (provider) => {
  it('a connection that says little touches little, however long', async () => {
    const CONNECTIONS = 40
    const ROUNDS = 1000 // of 1 KiB: a ring of 1 MiB
    await using server = await RingServer.listen(listenUri(provider), {
      onConnection: (connection) => connection.handle((request) => request.data),
    })
    const connections = await Promise.all(
      Array.from({ length: CONNECTIONS }, () => RingConnection.connect(server.uri)),
    )
    const say = async (rounds: number) => {
      const question = new Uint8Array(1000)
      const oneByOne = async (connection: RingConnection) => {
        for (let i = 0; i < rounds; i++) await connection.request(question)
      }
      await Promise.all(connections.map(oneByOne))
    }
    await say(1)
    const before = memory()
    expect(before).toBeGreaterThan(0)
    await say(ROUNDS)
    expect(memory()).toBeGreaterThan(before)
    // Both ends are here, with a ring and its mirror each: 64 KiB for each connection, 4 MiB where there are no windows.
    expect((memory() - before) / CONNECTIONS).toBeLessThan(80 * 1024)
    for (const connection of connections) await connection.close()
  }, 60_000)

  it('what is held on to in a small window stays as it is, and all that is sent comes, in order', async () => {
    const held: RingMessage[] = []
    const lengths = [10, 30_000, 20_000, 100_000, 50, 500_000, 1, 200_000, 60_000]
    let came = 0
    const all = deferred<void>()
    await using server = await RingServer.listen(listenUri(provider), {
      onConnection(connection) {
        connection.views.subscribe((message) => {
          const length = lengths[came % lengths.length] as number
          expect(Buffer.compare(message.data, pattern(length, came))).toBe(0)
          if (came++ === 0) {
            message.retain()
            held.push(message)
          }
          if (came === 90) all.resolve()
        })
      },
    })
    await using connection = await RingConnection.connect(server.uri)
    for (let i = 0; i < 90; i++) {
      const bytes = pattern(lengths[i % lengths.length] as number, i)
      while (!connection.send(bytes)) await connection.writable()
      if (i === 8) {
        await expect.poll(() => came).toBe(9)
        // The ring's smaller windows are behind it, and this one is as it came.
        expect(Buffer.compare((held[0] as RingMessage).data, pattern(10, 0))).toBe(0)
        held[0]?.release()
      }
    }
    await all.promise
  })

  it('a server that takes no ring as large as the default is asked again with a smaller one', async () => {
    const { promise, resolve } = deferred<RingConnection>()
    await using server = await RingServer.listen(listenUri(provider), {
      maxPeerCapacity: 2 ** 20,
      onConnection: resolve,
    })
    await using _ = await RingConnection.connect(server.uri)
    // Half of the client's ring, less 16 bytes.
    expect((await promise).maxMessageLength).toBe(2 ** 19 - 16)
    const chosen = RingConnection.connect(server.uri, { capacity: 2 ** 21 })
    await expect(chosen).rejects.toThrow('EMSGSIZE: capacity > maxPeerCapacity 1048576')
  })

  it('both ends count the same frames, whatever windows they were in', async () => {
    const { promise, resolve } = deferred<RingConnection>()
    await using server = await RingServer.listen(listenUri(provider), { onConnection: resolve })
    await using connection = await RingConnection.connect(server.uri)
    const accepted = await promise
    let came = 0
    accepted.messages.subscribe(() => came++)
    for (const length of [10, 5000, 100_000, 400_000])
      while (!connection.send(new Uint8Array(length))) await connection.writable()
    await expect.poll(() => came).toBe(4)
    expect(accepted.statistics().framesReceived).toBe(connection.statistics().framesSent)
  })
})
