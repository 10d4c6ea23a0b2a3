import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { Poller, type PollerMode, RingConnection, RingServer } from '../src/index.js'
import { PROVIDERS, pair } from './helpers/pair.js'
import { startPeer } from './helpers/processes.js'
import { resources } from './helpers/resources.js'

const script = fileURLToPath(new URL('helpers/exits.mjs', import.meta.url))

/** How a process ended. */
const leave = (way: string, uri: string) =>
  new Promise<{ code: number | null; signal: string | null; stderr: string }>((resolve) => {
    const child = execFile(process.execPath, [script, way, uri], { timeout: 25_000 }, (_, __, stderr) =>
      resolve({ code: child.exitCode, signal: child.signalCode, stderr }),
    )
  })

describe.each(PROVIDERS)('over %s', (name, uri) => {
  const where = () => (name === 'shm' ? uri().replace('.sock', '-%.sock') : uri())

  describe('a process with live connections on every kind of poller, and in worker threads', () => {
    it.each([
      ['exits', 0],
      ['throws', 1],
      ['worker-exits', 0],
      ['worker-throws', 0],
      ['worker-terminated', 0],
      ['worker-left', 0],
    ])('%s: no crash', async (way, code) => {
      const left = await leave(way, where())
      expect(left, left.stderr).toMatchObject({ code, signal: null })
    })

    it('is ended by a signal as any other', async () => {
      expect(await leave('ends', where())).toMatchObject({ code: null, signal: 'SIGTERM' })
    })
  })

  describe.each<PollerMode>(['poll', 'event', 'adaptive', 'caller'])(
    'a peer that is killed, poller %s',
    (mode) => {
      it('fails every promise that is pending, each within its deadline', async () => {
        await using ends = await pair(uri())
        using poller = new Poller(ends.a.context, { mode })
        const peer = await startPeer('silent', { uri: uri() })
        try {
          const connection = await RingConnection.connect(peer.uri, { poller })
          const requests = Array.from({ length: 50 }, () =>
            connection.request(new Uint8Array(10), { timeout: 8_000 }),
          )
          const short = connection.request(new Uint8Array(10), { timeout: 50 })
          await expect(short).rejects.toMatchObject({ code: 'ETIMEDOUT' })
          const batches = connection.batches().next()
          while (connection.send(new Uint8Array(1000)));
          const writable = connection.writable()
          const closing = performance.now()
          peer.process.kill('SIGKILL')
          const settled = await Promise.allSettled([...requests, writable])
          expect(performance.now() - closing).toBeLessThan(8_000)
          for (const one of settled)
            expect(one).toMatchObject({ status: 'rejected', reason: { code: 'ECONNRESET' } })
          expect(await batches).toMatchObject({ done: true })
          expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
          await connection.close()
        } finally {
          await peer.stop()
        }
      })
    },
  )

  it('1,000 connections one after another leave nothing behind', async () => {
    const server = await RingServer.listen(uri(), {
      capacity: 65536,
      onConnection: (connection) => connection.handle((request) => request.copy()),
    })
    const once = async (mode: number) => {
      const connection = await RingConnection.connect(server.uri, { capacity: 65536 })
      expect(await connection.request(new Uint8Array([9]))).toEqual(new Uint8Array([9]))
      // In good order, broken from this end, or from the other.
      if (mode === 2) for (const one of server.connections) await one.close({ drain: false })
      await connection.close({ drain: mode === 0 })
    }
    for (let i = 0; i < 300; i++) await once(i % 3)
    const before = await resources()
    for (let i = 0; i < 1000; i++) await once(i % 3)
    // The server's end of the last connection may still be closing.
    await expect.poll(async () => (await resources()).descriptors).toBeLessThanOrEqual(before.descriptors + 3)
    const after = await resources()
    await server.close()
    // 1,000 pairs of rings and staging regions of 64 KiB would be 250 MiB; the allocators take their time to settle.
    expect(after.bytes - before.bytes).toBeLessThan(32 * 2 ** 20)
  }, 60_000)
})
