import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { growth } from '../../../../test/growth.js'
import { Poller, type PollerMode, RingConnection, RingServer } from '../../src/index.js'
import { PROVIDERS, pair } from '../helpers/pair.js'
import { HANG_MS, type Peer, startPeer } from '../helpers/processes.js'
import { descriptors, residentBytes } from '../helpers/resources.js'

const script = fileURLToPath(new URL('../helpers/programs/exits.mjs', import.meta.url))

/** How a process ended. */
const leave = (way: string, uri: string) =>
  new Promise<{ code: number | null; signal: string | null; stdout: string; stderr: string }>((resolve) => {
    const child = execFile(process.execPath, [script, way, uri], { timeout: HANG_MS }, (_, stdout, stderr) =>
      resolve({ code: child.exitCode, signal: child.signalCode, stdout, stderr }),
    )
  })

describe.each(PROVIDERS)('over %s', (name, uri) => {
  const where = () => (name === 'shm' ? uri().replace('.sock', '-%.sock') : uri())

  describe('a process with live connections on every kind of poller', () => {
    it.each([
      ['exits', 0],
      ['throws', 1],
    ])('%s: no crash', async (way, code) => {
      const left = await leave(way, where())
      expect(left, left.stderr).toMatchObject({ code, signal: null })
    })

    it('is ended by a signal as any other', async () => {
      expect(await leave('ends', where())).toMatchObject({ code: null, signal: 'SIGTERM' })
    })
  })

  // One process has a worker that ends in each of these ways, one after the other.
  describe('a worker thread with live connections on every kind of poller', () => {
    let left: Awaited<ReturnType<typeof leave>>
    beforeAll(async () => {
      left = await leave('workers', where())
    })

    it.each([
      ['exits', 0],
      ['throws', 1],
      ['terminated', 1],
    ])('worker-%s: no crash', (way, code) => {
      expect(left.stdout, left.stderr).toContain(`${way}: ${code}\n`)
    })

    it('worker-left: no crash', () => {
      expect(left, left.stderr).toMatchObject({ code: 0, signal: null })
    })
  })

  // All have the same peer, which dies once: the reports of each are known before the cases look at them.
  describe('a peer that is killed', () => {
    const modes: readonly PollerMode[] = ['poll', 'event', 'adaptive', 'caller', 'guarded']
    const told = new Map<PollerMode, Awaited<ReturnType<typeof waitForEverything>>>()

    /** Everything that can be waited for is, when this resolves; `ended` is what it comes to. */
    async function waitForEverything(peer: Peer, poller: Poller) {
      const timeout = HANG_MS
      const connection = await RingConnection.connect(peer.uri, { poller, timeout })
      const ask = (timeout: number) =>
        connection.request(new Uint8Array(10), { timeout }).catch((failure: unknown) => failure)
      const requests = Array.from({ length: 50 }, () => ask(HANG_MS))
      const short = await ask(50)
      const batches = connection.batches().next()
      // Room for a larger window, too, is told once the send queue has a place.
      const fill = async () => {
        for (;;) if (!connection.send(new Uint8Array(1000))) await connection.writable()
      }
      const writable = fill().catch((failure: unknown) => failure)
      const ended = async () => ({
        settled: await Promise.all([...requests, writable]),
        batches: await batches,
        closed: await connection.closed,
      })
      return { short, ended, close: () => connection.close() }
    }

    beforeAll(async () => {
      const ends = await pair(uri())
      const peer = await startPeer('silent', { uri: uri() })
      const pollers = modes.map((mode) => new Poller(ends.a.context, { mode }))
      try {
        for (const [i, mode] of modes.entries())
          told.set(mode, await waitForEverything(peer, pollers[i] as Poller))
      } finally {
        await peer.stop()
      }
      return async () => {
        for (const { close } of told.values()) await close()
        for (const poller of pollers) poller.close()
        await ends[Symbol.asyncDispose]()
      }
    })

    it.each(modes)(
      'fails every promise that is pending, each within its deadline, poller %s',
      async (mode) => {
        const { short, ended } = told.get(mode) as NonNullable<ReturnType<typeof told.get>>
        expect(short).toMatchObject({ code: 'ETIMEDOUT' })
        const { settled, batches, closed } = await ended()
        expect(settled).toHaveLength(51)
        // At their deadline they would fail with ETIMEDOUT.
        for (const failure of settled) expect(failure).toMatchObject({ code: 'ECONNRESET' })
        expect(batches).toMatchObject({ done: true })
        expect(closed).toMatchObject({ code: 'ECONNRESET' })
      },
    )
  })

  it('connections one after another leave nothing behind', async () => {
    const [timeout, capacity] = [HANG_MS, 2 ** 17]
    const server = await RingServer.listen(uri(), {
      timeout,
      capacity,
      onConnection: (connection) => connection.handle((request) => request.copy()),
    })
    const once = async (mode: number) => {
      const connection = await RingConnection.connect(server.uri, { timeout, capacity })
      expect(await connection.request(new Uint8Array([9]), { timeout })).toEqual(new Uint8Array([9]))
      // In good order, broken from this end, or from the other.
      if (mode === 2) for (const one of server.connections) await one.close({ drain: false })
      await connection.close({ drain: mode === 0 })
    }
    for (let i = 0; i < 45; i++) await once(i % 3)
    const before = descriptors()
    const pairs = effort(90)
    const many = async () => {
      for (let i = 0; i < pairs; i++) await once(i % 3)
      // The server's end of the last connection may still be closing.
      await eventually(() => descriptors() <= before + 3)
    }
    // Half of what their rings and staging regions would be.
    const limit = (pairs * 4 * capacity) / 2
    const left = await growth(residentBytes, many, limit)
    await server.close()
    expect(left).toBeLessThan(limit)
  })
})
