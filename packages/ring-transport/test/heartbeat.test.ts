// Peers that are stopped, or whose JavaScript is, and connections that rest: real processes, real time.
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, it } from 'vitest'
import { RingConnection, type RingServerOptions } from '../src/index.js'
import { pair as connected } from './helpers/pair.js'
import { type Peer, startPeer } from './helpers/processes.js'
import { follow, until } from './helpers/states.js'
import { listenUri, PROVIDERS } from './helpers/uris.js'

const open: { close(options?: { drain?: boolean }): Promise<void> }[] = []
const peers: Peer[] = []
afterEach(async () => {
  // A peer that is stopped does not answer: it goes first.
  await Promise.all(peers.splice(0).map((one) => one.stop()))
  await Promise.all(open.splice(0).map((one) => one.close({ drain: false })))
})

const bytes = (text: string) => new TextEncoder().encode(text)
const OFF = { heartbeat: 0 }

describe.each(PROVIDERS)('over %s', (provider) => {
  async function connectTo(role: string, peerOptions: object, options: object) {
    const peer = await startPeer(role, { uri: listenUri(provider), ...peerOptions })
    peers.push(peer)
    const connection = await RingConnection.connect(peer.uri, options)
    open.push(connection)
    return { peer, connection }
  }

  describe('a peer', () => {
    it('that is stopped is lost with ETIMEDOUT, and its requests with it', async () => {
      const { peer, connection } = await connectTo('silent', OFF, { heartbeat: 100, deadAfter: 1000 })
      const request = connection.request(new Uint8Array(1), { timeout: 30_000 }).catch(({ code }) => code)
      // Over shm one that is stopped in the middle of a copy would be waited for (README of shm, Revocation).
      await sleep(50)
      // Its last sign of life is the connection, or the answer to a ping, 150 ms before at most.
      const before = performance.now()
      peer.process.kill('SIGSTOP')
      const { reason } = await until(connection.states, 'lost')
      const took = performance.now() - before
      expect(reason).toMatchObject({ code: 'ETIMEDOUT', message: expect.stringContaining('heard') })
      expect(took).toBeGreaterThan(800)
      expect(took).toBeLessThan(2000)
      expect(await connection.closed).toBe(reason)
      expect(await request).toBe('ETIMEDOUT')
    })

    it('that is stopped for less than deadAfter is not lost', async () => {
      const { peer, connection } = await connectTo('echo', OFF, { heartbeat: 100, deadAfter: 2000 })
      peer.process.kill('SIGSTOP')
      await sleep(1000)
      peer.process.kill('SIGCONT')
      expect(await connection.request(bytes('still there'))).toEqual(bytes('still there'))
      expect(follow(connection.states)).toEqual(['open 0'])
    })

    it('whose JavaScript stands still for longer than deadAfter is not lost: its poller answers', async () => {
      const { connection } = await connectTo('blocks', OFF, { heartbeat: 100, deadAfter: 1000 })
      connection.send(bytes('2500'))
      const states = follow(connection.states)
      await sleep(2000)
      expect(states).toEqual(['open 0'])
      await expect(connection.request(new Uint8Array())).rejects.toMatchObject({ code: 'ENOSYS' })
    })

    it('that says nothing for long answers pings, and is not lost', async () => {
      const { connection } = await connectTo('echo', OFF, { heartbeat: 20, deadAfter: 1000 })
      const states = follow(connection.states)
      await sleep(2000)
      expect(states).toEqual(['open 0'])
    })

    it('without a thread answers from its event loop', async () => {
      const watchful = { heartbeat: 50, deadAfter: 1000 }
      const { connection } = await connectTo('echo', { mode: 'caller', ...watchful }, watchful)
      const states = follow(connection.states)
      await sleep(2000)
      expect(states).toEqual(['open 0'])
      expect(await connection.request(bytes('here'))).toEqual(bytes('here'))
    })

    it('is not taken for dead by a process that was stopped itself, or whose event loop was', async () => {
      const watchful = { heartbeat: 50, deadAfter: 1000 }
      const { peer, connection } = await connectTo('echo', watchful, OFF)
      peer.process.kill('SIGSTOP')
      await sleep(2000)
      peer.process.kill('SIGCONT')
      // Its looks go on; if it takes us for dead, that is within the next.
      await sleep(500)
      expect(await connection.request(bytes('here'))).toEqual(bytes('here'))

      const { connection: ours } = await connectTo('echo', OFF, watchful)
      const until = performance.now() + 2000
      while (performance.now() < until);
      await sleep(500)
      expect(await ours.request(bytes('here'))).toEqual(bytes('here'))
    })
  })

  describe('a connection without messages', () => {
    async function pair(server: Partial<RingServerOptions>, client: object) {
      const ends = await connected(listenUri(provider), server, client)
      open.push({ close: async () => ends[Symbol.asyncDispose]() })
      return ends
    }

    it('becomes idle, also while heartbeats go on, and open again with a message either way', async () => {
      const { a, b } = await pair(OFF, { heartbeat: 20, deadAfter: 5000, idleTimeout: 100 })
      b.handle((request) => request.copy())
      const states = follow(a.states)
      await until(a.states, 'idle')
      await a.request(new Uint8Array(1))
      await until(a.states, 'open')
      await until(a.states, 'idle')
      b.send(new Uint8Array(1))
      await until(a.states, 'open')
      expect(states).toEqual(['open 0', 'idle 0', 'open 0', 'idle 0', 'open 0'])
    })

    it('closes in good order when an end wants that', async () => {
      const { a, b } = await pair({ idleTimeout: 500, closeWhenIdle: true }, {})
      const states = follow(b.states)
      expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined])
      expect(states).toEqual(['open 0', 'idle 0', 'draining 0', 'closed 0'])
    })

    it('is not idle while a request is answered or a message is not taken', async () => {
      const { a, b } = await pair({ idleTimeout: 400, closeWhenIdle: true }, {})
      b.handle(async (request) => {
        await sleep(1200)
        return request.copy()
      })
      expect(await a.request(bytes('slow'))).toEqual(bytes('slow'))
      const kept = b.isOpen
      a.send(bytes('waits'))
      await sleep(1200)
      expect([kept, b.isOpen]).toEqual([true, true])
      const texts: string[] = []
      b.messages.subscribe((message) => texts.push(message.text()))
      expect(await b.closed).toBeUndefined()
      expect(texts).toEqual(['waits'])
    })
  })
})
