// Large messages between processes: much through a few MiB of memory, and deaths of either side.
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { stopProcess } from '../../../../test/stop-process.js'
import { type LivenessOptions, RingConnection } from '../../src/index.js'
import { PROVIDERS } from '../helpers/pair.js'
import { HANG_MS, type Peer, startPeer } from '../helpers/processes.js'
import { READ_FROM } from '../helpers/transfers.js'

const MIB = 2 ** 20
/** At most what a test machine has at both ends: npm run soak comes to a GiB. */
const LENGTH = Math.min(2 ** 30, effort(128 * MIB))

/** A peer that is busy reading has its time to answer. */
const LIVENESS = { heartbeat: 100, deadAfter: 10_000 }

const peers: Peer[] = []
const connections: RingConnection[] = []
afterEach(async () => {
  for (const connection of connections.splice(0)) await connection.close({ drain: false })
  for (const peer of peers.splice(0)) await peer.stop()
})

describe.each(PROVIDERS)('over %s', (_, uri) => {
  async function connected(role: string, options: LivenessOptions = LIVENESS) {
    const peer = await startPeer(role, { uri: uri() }, './programs/transfer-peer.mjs')
    peers.push(peer)
    return { peer, connection: await connect(peer, options) }
  }
  async function connect(peer: Peer, options: LivenessOptions = LIVENESS) {
    const connection = await RingConnection.connect(peer.uri, { timeout: HANG_MS, ...READ_FROM, ...options })
    connections.push(connection)
    return connection
  }
  /** Each MiB begins with its number. */
  function numbered(bytes: Uint8Array): void {
    const fields = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    for (let at = 0; at < bytes.length; at += MIB) fields.setUint32(at, at / MIB)
  }

  describe('an eighth of a GiB', () => {
    let peer: Peer
    beforeAll(async () => {
      peer = await startPeer('chunks', { uri: uri() }, './programs/transfer-peer.mjs')
    })
    afterAll(() => peer.stop())
    /** The reader's report on a message; it also reports the end of a connection. */
    async function read(): Promise<{ position: number; wrong: number; grown: number }> {
      for (;;) {
        const told: object = await peer.told()
        if ('grown' in told) return told as never
      }
    }

    it('passes through 2 MiB of the reader’s memory', async () => {
      const connection = await connect(peer)
      const region = await connection.allocate(LENGTH)
      numbered(new Uint8Array(region.buffer))
      const seen: number[] = []
      await connection.transmit({ region }, { onProgress: (bytes) => seen.push(bytes) })
      const told = await read()
      expect(told).toMatchObject({ position: LENGTH, wrong: 0 })
      expect(told.grown, 'KiB of memory of its own').toBeLessThan(32 * 1024)
      expect(seen.at(-1)).toBe(LENGTH)
      expect(seen.length).toBeGreaterThan(50)
      for (let i = 1; i < seen.length; i++) expect(seen[i]).toBeGreaterThanOrEqual(seen[i - 1] as number)
    })

    it('of memory that is registered for it only', async () => {
      const connection = await connect(peer)
      const bytes = new Uint8Array(LENGTH)
      numbered(bytes)
      await connection.transmit(bytes)
      const told = await read()
      expect(told).toMatchObject({ position: LENGTH, wrong: 0 })
      expect(told.grown, 'KiB of memory of its own').toBeLessThan(32 * 1024)
    })
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

  describe('a peer that is stopped', () => {
    let peer: Peer
    let connection: RingConnection
    beforeAll(async () => {
      // Nothing else tells that it is stopped.
      ;({ peer, connection } = await connected('messages', { heartbeat: 0 }))
      peers.splice(0)
      connections.splice(0)
      await stopProcess(peer.process)
    })
    afterAll(async () => {
      await connection.close({ drain: false })
      await peer.stop()
    })

    it('is given up by a sender at the deadline', async () => {
      await expect(connection.transmit(new Uint8Array(MIB), { timeout: 300 })).rejects.toMatchObject({
        code: 'ETIMEDOUT',
      })
      expect(connection.isOpen).toBe(true)
    })

    it('does not answer requests, which fail at their deadline, and when it is killed at once', async () => {
      const requests = (timeout: number) =>
        Promise.allSettled(
          Array.from({ length: 100 }, () => connection.request(new Uint8Array(8), { timeout })),
        )
      const later = requests(HANG_MS)
      let over = false
      void later.then(() => {
        over = true
      })
      for (const { reason } of (await requests(300)) as PromiseRejectedResult[])
        expect(reason.code).toBe('ETIMEDOUT')
      expect(over).toBe(false)
      peer.process.kill('SIGKILL')
      for (const { reason } of (await later) as PromiseRejectedResult[])
        expect(reason.code).toBe('ECONNRESET')
    })
  })
})
