// Peers that are stopped, or whose JavaScript is, and connections that rest: real processes, real time. The cases wait
// side by side.
import { setTimeout as sleep } from 'node:timers/promises'
import { deferred } from '@rdmakit/verbs/internal'
import { afterAll, describe, expect, it, onTestFinished, type TestContext, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { standStill } from '../../../../test/stand-still.js'
import { stopProcess } from '../../../../test/stop-process.js'
import { type ConnectOptions, RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { pair as connected } from '../helpers/pair.js'
import { HANG_MS, type Peer, startPeer } from '../helpers/processes.js'
import { follow, until } from '../helpers/states.js'
import { listenUri, PROVIDERS, type Provider } from '../helpers/uris.js'

vi.setConfig({ maxConcurrency: 20 })

const bytes = (text: string) => new TextEncoder().encode(text)
const timeout = HANG_MS
const OFF = { heartbeat: 0 }
/** A ping's answer has a second, however busy the machine; what is silent for longer is taken for dead. */
const DEAD_AFTER_MS = 1000
const WATCHFUL = { heartbeat: 50, deadAfter: DEAD_AFTER_MS }

/** Until the peer has answered pings for longer than a silent one counts as alive: each follows a silence. */
async function outlivesDeadAfter(connection: RingConnection, { heartbeat, deadAfter } = WATCHFUL) {
  const pongs = () => connection.statistics().creditsReceived
  const enough = pongs() + Math.ceil((1.2 * deadAfter) / heartbeat)
  await eventually(() => pongs() >= enough || !connection.isOpen, HANG_MS)
}

type Finished = TestContext['onTestFinished']

async function connect(finished: Finished, { uri }: Peer, options: ConnectOptions) {
  const connection = await RingConnection.connect(uri, { timeout, ...options })
  finished(() => connection.close({ drain: false }))
  return connection
}

/** Of each provider: answers, and asks for no sign of life. Several cases have a connection of their own to it. */
const echoes = new Map<Provider, Promise<Peer>>()
function sharedEcho(provider: Provider): Promise<Peer> {
  const echo = echoes.get(provider) ?? startPeer('echo', { uri: listenUri(provider), ...OFF })
  echoes.set(provider, echo)
  return echo
}
afterAll(async () => {
  for (const echo of echoes.values()) await (await echo).stop()
})

describe.concurrent.each(PROVIDERS)('over %s', (provider) => {
  async function peerOf(finished: Finished, role: string, options: object): Promise<Peer> {
    const peer = await startPeer(role, { uri: listenUri(provider), ...options })
    finished(() => peer.stop())
    return peer
  }

  describe('a peer', () => {
    it('that is stopped is lost with ETIMEDOUT, and its requests with it', async ({
      onTestFinished: finished,
    }) => {
      const peer = await peerOf(finished, 'silent', OFF)
      const connection = await connect(finished, peer, { heartbeat: 100, deadAfter: DEAD_AFTER_MS })
      const request = connection.request(new Uint8Array(1), { timeout }).catch((failure) => failure)
      // Over shm one that is stopped in the middle of a copy would be waited for (README of shm, Revocation).
      await peer.told()
      await stopProcess(peer.process)
      const { reason } = await until(connection.states, 'lost')
      expect(reason).toMatchObject({ code: 'ETIMEDOUT' })
      const [, silence] = /the peer was silent for (\d+) ms/.exec(reason.message) ?? []
      // It looks each 50 ms, a look counts for two at most, and one look that is late does not decide.
      expect(Number(silence)).toBeGreaterThanOrEqual(DEAD_AFTER_MS)
      expect(Number(silence)).toBeLessThan(DEAD_AFTER_MS + 200)
      expect(await connection.closed).toBe(reason)
      expect(await request).toBe(reason)
    })

    it('that is stopped for less than deadAfter is not lost', async ({ onTestFinished: finished }) => {
      const peer = await peerOf(finished, 'echo', OFF)
      const connection = await connect(finished, peer, { heartbeat: 20, deadAfter: HANG_MS })
      await stopProcess(peer.process)
      // Silence is no event. In this time it is asked for a sign of life many times.
      await sleep(500)
      peer.process.kill('SIGCONT')
      expect(await connection.request(bytes('still there'), { timeout })).toEqual(bytes('still there'))
      expect(follow(connection.states)).toEqual(['open 0'])
    })

    it('whose JavaScript stands still for longer than deadAfter is not lost: its poller answers', async ({
      onTestFinished: finished,
    }) => {
      const peer = await peerOf(finished, 'blocks', OFF)
      const connection = await connect(finished, peer, WATCHFUL)
      const states = follow(connection.states)
      connection.send(bytes('stand still'))
      let answered = false
      const request = connection.request(new Uint8Array(), { timeout }).catch((failure) => {
        answered = true
        return failure
      })
      await outlivesDeadAfter(connection)
      expect({ states, answered }).toEqual({ states: ['open 0'], answered: false })
      peer.process.stdin?.write('.')
      expect(await request).toMatchObject({ code: 'ENOSYS' })
    })

    it('that says nothing for long answers pings, and is not lost', async ({ onTestFinished: finished }) => {
      const connection = await connect(finished, await sharedEcho(provider), WATCHFUL)
      const states = follow(connection.states)
      await outlivesDeadAfter(connection)
      expect(states).toEqual(['open 0'])
    })

    it('without a thread answers from its event loop', async ({ onTestFinished: finished }) => {
      const peer = await peerOf(finished, 'echo', { mode: 'caller' })
      const connection = await connect(finished, peer, WATCHFUL)
      const states = follow(connection.states)
      await outlivesDeadAfter(connection)
      expect(states).toEqual(['open 0'])
      expect(await connection.request(bytes('here'), { timeout })).toEqual(bytes('here'))
    })

    it('is not taken for dead by a process that was stopped itself', async ({ onTestFinished: finished }) => {
      const peer = await peerOf(finished, 'echo', WATCHFUL)
      const connection = await connect(finished, peer, OFF)
      await stopProcess(peer.process)
      // A stopped process says nothing. It must have been stopped for longer than deadAfter.
      await sleep(1.5 * DEAD_AFTER_MS)
      peer.process.kill('SIGCONT')
      // If it takes us for dead, that is within its next looks, each of which asks for a sign of life.
      const { pingsReceived } = connection.statistics()
      await eventually(
        () => connection.statistics().pingsReceived > pingsReceived + 5 || !connection.isOpen,
        HANG_MS,
      )
      expect(await connection.request(bytes('here'), { timeout })).toEqual(bytes('here'))
    })
  })

  describe('a connection without messages', () => {
    async function pair(finished: Finished, server: Partial<RingServerOptions>, client: ConnectOptions) {
      const ends = await connected(listenUri(provider), server, { timeout, ...client })
      finished(() => ends[Symbol.asyncDispose]())
      return ends
    }

    it('becomes idle, also while heartbeats go on, and open again with a message either way', async ({
      onTestFinished: finished,
    }) => {
      const watchful = { heartbeat: 20, deadAfter: HANG_MS, idleTimeout: 100 }
      const { a, b } = await pair(finished, OFF, watchful)
      b.handle((request) => request.copy())
      const states = follow(a.states)
      await until(a.states, 'idle')
      await a.request(new Uint8Array(1), { timeout })
      await until(a.states, 'open')
      await until(a.states, 'idle')
      b.send(new Uint8Array(1))
      await until(a.states, 'open')
      expect(states).toEqual(['open 0', 'idle 0', 'open 0', 'idle 0', 'open 0'])
    })

    /**
     * A connection whose accepting end `b` closes it when it is idle, which it is not before `ready()`: `b` waits
     * for an answer.
     */
    async function closing(finished: Finished, onConnection: (b: RingConnection) => void) {
      const [accepted, asked] = [deferred<RingConnection>(), deferred<void>()]
      const server = await RingServer.listen(listenUri(provider), {
        idleTimeout: 100,
        closeWhenIdle: true,
        onConnection(b) {
          onConnection(b)
          b.request(new Uint8Array(), { timeout }).catch(() => {})
          accepted.resolve(b)
        },
      })
      finished(() => server.close({ drain: false }))
      const a = await RingConnection.connect(server.uri, { timeout })
      a.handle(async () => {
        await asked.promise
        return new Uint8Array()
      })
      return { a, b: await accepted.promise, ready: () => asked.resolve() }
    }

    it('closes in good order when an end wants that', async ({ onTestFinished: finished }) => {
      let states: string[] = []
      const { a, b, ready } = await closing(finished, (accepted) => {
        states = follow(accepted.states)
      })
      ready()
      expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined])
      expect(states).toEqual(['open 0', 'idle 0', 'draining 0', 'closed 0'])
    })

    it('is not idle while a request is answered', async ({ onTestFinished: finished }) => {
      const [asked, answer] = [deferred<void>(), deferred<void>()]
      const { a, b, ready } = await closing(finished, (accepted) => {
        accepted.handle(async (request) => {
          asked.resolve()
          await answer.promise
          return request.copy()
        })
      })
      const slow = a.request(bytes('slow'), { timeout })
      await asked.promise
      ready()
      // That it does not become idle is no event: four times what it takes otherwise.
      await sleep(400)
      expect(b.isOpen).toBe(true)
      answer.resolve()
      expect(await slow).toEqual(bytes('slow'))
      expect(await b.closed).toBeUndefined()
    })

    it('is not idle while a message is not taken', async ({ onTestFinished: finished }) => {
      const { a, b, ready } = await closing(finished, () => {})
      a.send(bytes('waits'))
      await eventually(() => b.statistics().messagesWaiting === 1)
      ready()
      await sleep(400)
      expect(b.isOpen).toBe(true)
      const texts: string[] = []
      b.messages.subscribe((message) => texts.push(message.text()))
      expect(await b.closed).toBeUndefined()
      expect(texts).toEqual(['waits'])
    })
  })
})

// Not beside the others, whose event loop it is.
describe.each(PROVIDERS)('over %s', (provider) => {
  it('a peer is not taken for dead by a process whose event loop stood still', async () => {
    const connection = await connect(onTestFinished, await sharedEcho(provider), WATCHFUL)
    standStill(1.5 * DEAD_AFTER_MS)
    const { creditsReceived } = connection.statistics()
    await eventually(
      () => connection.statistics().creditsReceived > creditsReceived + 5 || !connection.isOpen,
      HANG_MS,
    )
    expect(await connection.request(bytes('here'), { timeout })).toEqual(bytes('here'))
  })
})
