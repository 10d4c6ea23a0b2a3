// Large messages between processes: a GiB through a few MiB of memory, and deaths of either side.
import { afterEach, describe, expect, it } from 'vitest'
import { RingConnection } from '../src/index.js'
import { PROVIDERS } from './helpers/pair.js'
import { type Peer, startPeer } from './helpers/processes.js'

const MIB = 2 ** 20
const GIB = 2 ** 30

const peers: Peer[] = []
const connections: RingConnection[] = []
afterEach(async () => {
  for (const connection of connections.splice(0)) await connection.close({ drain: false })
  for (const peer of peers.splice(0)) await peer.stop()
})

describe.each(PROVIDERS)('over %s', (_, uri) => {
  async function connected(role: string) {
    const peer = await startPeer(role, { uri: uri() }, './transfer-peer.mjs')
    peers.push(peer)
    const connection = await RingConnection.connect(peer.uri, { heartbeat: 100, deadAfter: 1000 })
    connections.push(connection)
    return { peer, connection }
  }
  /** Each MiB begins with its number. */
  function numbered(bytes: Uint8Array): void {
    const fields = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    for (let at = 0; at < bytes.length; at += MIB) fields.setUint32(at, at / MIB)
  }

  it('a GiB passes through 2 MiB of the reader’s memory', { timeout: 60_000 }, async () => {
    const { peer, connection } = await connected('chunks')
    const region = await connection.allocate(GIB)
    numbered(new Uint8Array(region.buffer))
    const seen: number[] = []
    await connection.transmit({ region }, { onProgress: (bytes) => seen.push(bytes) })
    const told = (await peer.told()) as unknown as { position: number; wrong: number; grown: number }
    expect(told).toMatchObject({ position: GIB, wrong: 0 })
    expect(told.grown, 'KiB of memory of its own').toBeLessThan(32 * 1024)
    expect(seen.at(-1)).toBe(GIB)
    expect(seen.length).toBeGreaterThan(50)
    for (let i = 1; i < seen.length; i++) expect(seen[i]).toBeGreaterThanOrEqual(seen[i - 1] as number)
  })

  it('a GiB of memory that is registered for it only', { timeout: 60_000 }, async () => {
    const { peer, connection } = await connected('chunks')
    const bytes = new Uint8Array(GIB)
    numbered(bytes)
    await connection.transmit(bytes)
    const told = (await peer.told()) as unknown as { position: number; wrong: number; grown: number }
    expect(told).toMatchObject({ position: GIB, wrong: 0 })
    expect(told.grown, 'KiB of memory of its own').toBeLessThan(32 * 1024)
  })

  it('a reader that is killed before it reads', async () => {
    const { peer, connection } = await connected('waits')
    const sent = connection.transmit(new Uint8Array(MIB))
    const failed = expect(sent).rejects.toMatchObject({ code: expect.stringMatching(/ECONNRESET|ETIMEDOUT/) })
    await peer.told()
    peer.process.kill('SIGKILL')
    await failed
    await connection.closed
  })

  it('a reader that is killed while it reads', async () => {
    const { connection } = await connected('dies')
    const sent = connection.transmit(new Uint8Array(64 * MIB))
    await expect(sent).rejects.toMatchObject({ code: expect.stringMatching(/ECONNRESET|ETIMEDOUT/) })
  })

  it('a sender that is killed while it is read', async () => {
    const { peer, connection } = await connected('transmits')
    const offered = new Promise<unknown>((resolve) => {
      connection.offers.subscribe(async (offer) => {
        const into = await connection.allocate(offer.length)
        let kills = true
        const onProgress = () => {
          if (kills) peer.process.kill('SIGKILL')
          kills = false
        }
        offer.accept({ into, onProgress }).then(resolve, resolve)
      })
    })
    void connection.request(new Uint8Array()).catch(() => {})
    const outcome = await offered
    // All of it may have been on its way already.
    if (outcome instanceof Error)
      expect(outcome).toMatchObject({ code: expect.stringMatching(/ECONNRESET|ETIMEDOUT/) })
    await connection.closed
  })

  it('a reader that is stopped is given up at the deadline', async () => {
    const { peer, connection } = await connected('messages')
    peer.process.kill('SIGSTOP')
    const begin = performance.now()
    await expect(connection.transmit(new Uint8Array(MIB), { timeout: 300 })).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    })
    expect(performance.now() - begin).toBeLessThan(2000)
    peer.process.kill('SIGCONT')
  })

  it('requests to a peer that is killed or stopped fail within their deadline', async () => {
    const { peer, connection } = await connected('messages')
    peer.process.kill('SIGSTOP')
    const begin = performance.now()
    const stopped = Array.from({ length: 100 }, () => connection.request(new Uint8Array(8), { timeout: 300 }))
    for (const { reason } of (await Promise.allSettled(stopped)) as PromiseRejectedResult[])
      expect(reason.code).toBe('ETIMEDOUT')
    expect(performance.now() - begin).toBeLessThan(2000)
    const killed = Array.from({ length: 100 }, () => connection.request(new Uint8Array(8), { timeout: 900 }))
    peer.process.kill('SIGKILL')
    for (const { reason } of (await Promise.allSettled(killed)) as PromiseRejectedResult[])
      expect(reason.code).toMatch(/ECONNRESET|ETIMEDOUT/)
    expect(performance.now() - begin).toBeLessThan(3000)
  })
})
