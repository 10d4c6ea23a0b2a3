import { UsageError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { firstValueFrom, map, take, toArray } from 'rxjs'
import { afterEach, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { growth } from '../../../../test/growth.js'
import { OWN_LOOPBACK } from '../../../../test/own-loopback.js'
import { stopProcess } from '../../../../test/stop-process.js'
import { RingClient, type RingClientOptions, type RingConnection, RingServer } from '../../src/index.js'
import { HANG_MS, type Peer, startPeer } from '../helpers/processes.js'
import { descriptors, heap, residentBytes } from '../helpers/resources.js'
import { follow, until } from '../helpers/states.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const clients: RingClient[] = []
const servers: RingServer[] = []
const peers: Peer[] = []
afterEach(async () => {
  await Promise.all(clients.splice(0).map((one) => one.close({ drain: false })))
  await Promise.all(servers.splice(0).map((one) => one.close({ drain: false })))
  await Promise.all(peers.splice(0).map((one) => one.stop()))
})

const bytes = (text: string) => new TextEncoder().encode(text)
const text = (data: Uint8Array) => new TextDecoder().decode(data)
const timeout = HANG_MS
const QUICK = { reconnect: { min: 5, max: 50 } }

function client(uri: string | string[], options: RingClientOptions = QUICK): RingClient {
  const made = new RingClient(uri, options)
  clients.push(made)
  return made
}

/** That a server can have again. */
const ownUri = (provider: (typeof PROVIDERS)[number]) =>
  listenUri(provider).replace('127.0.0.1', OWN_LOOPBACK)

describe.each(PROVIDERS)('a client over %s', (provider) => {
  async function start(role: string, uri = ownUri(provider)): Promise<Peer> {
    const peer = await startPeer(role, { uri })
    peers.push(peer)
    return peer
  }

  async function listen(onConnection: (connection: RingConnection) => void = () => {}, uri?: string) {
    const server = await RingServer.listen(uri ?? ownUri(provider), { onConnection })
    servers.push(server)
    return server
  }

  /** A server in this process that never answers. */
  async function silent() {
    const asked = deferred<void>()
    const server = await listen((connection) =>
      connection.handle(() => {
        asked.resolve()
        return new Promise(() => {})
      }),
    )
    return { uri: server.uri, asked: asked.promise, close: server.close.bind(server) }
  }

  it('finds a server that was killed and started again, under a higher epoch of its session', async () => {
    const first = await start('epochs')
    const one = client(first.uri)
    const states = follow(one.states)
    const messages = firstValueFrom(
      one.messages.pipe(
        map((message) => message.text()),
        take(2),
        toArray(),
      ),
    )
    expect(text(await one.request(bytes('who')))).toBe(String(first.process.pid))
    expect(await first.told()).toEqual({ session: one.sessionId, epoch: 1 })
    const lost = until(one.states, 'lost').then(() => one.send(bytes('nobody')))
    await first.stop()
    expect(await lost).toBe(false)
    const second = await start('epochs', first.uri)
    // It waits for the connection by itself.
    expect(text(await one.request(bytes('who'), { timeout }))).toBe(String(second.process.pid))
    const { session, epoch } = await second.told()
    expect(session).toBe(one.sessionId)
    expect(Number(epoch)).toBeGreaterThan(1)
    expect(await messages).toEqual(['epoch 1', `epoch ${epoch}`])
    await one.close()
    expect(states.slice(0, 4)).toEqual(['connecting 1', 'open 1', 'lost 1', 'waiting'])
    expect(states.slice(-4)).toEqual([`connecting ${epoch}`, `open ${epoch}`, `draining ${epoch}`, 'closed'])
    expect(await one.closed).toBeUndefined()
  })

  it('rejects a request that is in flight when the connection is lost, with ECONNRESET', async () => {
    const peer = await start('epochs')
    const one = client(peer.uri)
    await one.opened()
    const lost = one.request(new Uint8Array(), { timeout }).catch((failure) => failure)
    await one.request(bytes('the one before has arrived'))
    await peer.stop()
    expect(await lost).toMatchObject({ name: 'VerbsError', code: 'ECONNRESET' })
  })

  it('sends an idempotent one again on the next connection', async () => {
    const first = await silent()
    const one = client(first.uri)
    const answer = one.request(bytes(''), { idempotent: true, timeout }).catch(({ code }) => code)
    await first.asked
    await first.close({ drain: false })
    const server = await listen((connection) => {
      connection.handle((request) => bytes(`got ${request.length}`))
    }, first.uri)
    expect(text(await answer)).toBe('got 0')
    expect(server.counts.accepted).toBe(1)
  })

  it('gives up an idempotent one at its deadline', async () => {
    const first = await silent()
    const one = client(first.uri)
    await one.opened({ timeout })
    const answer = one.request(bytes(''), { idempotent: true, timeout: 400 }).catch(({ code }) => code)
    await first.asked
    const lost = until(one.states, 'lost')
    await first.close({ drain: false })
    await lost
    expect(await answer).toBe('ETIMEDOUT')
  })

  it('reconnects when the server closes in good order too', async () => {
    const first = await listen()
    const one = client(first.uri)
    await one.opened()
    const lost = until(one.states, 'lost')
    await first.close()
    expect(await lost).toMatchObject({ epoch: 1, reason: undefined })
    await listen((connection) => connection.handle((request) => request.copy()), first.uri)
    expect(await one.request(bytes('again'))).toEqual(bytes('again'))
  })

  it('is lost with ETIMEDOUT, and comes back, when the server is stopped and goes on', async () => {
    const peer = await start('epochs')
    const one = client(peer.uri, { ...QUICK, heartbeat: 50, deadAfter: 500, timeout: 300 })
    await one.request(bytes('who'), { timeout })
    // Over shm one that is stopped in the middle of a copy would be waited for (README of shm, Revocation). It has
    // copied all, the credit for what it was asked behind its answer, when it has answered another ping.
    const { creditsReceived } = one.statistics()
    await eventually(() => one.statistics().creditsReceived > creditsReceived)
    await stopProcess(peer.process)
    const { reason } = await until(one.states, 'lost')
    expect(reason).toMatchObject({ code: 'ETIMEDOUT' })
    peer.process.kill('SIGCONT')
    expect(text(await one.request(bytes('who'), { timeout }))).toBe(String(peer.process.pid))
    expect(one.connection?.session?.epoch).toBeGreaterThan(1)
  })

  it('goes through its addresses in order, each time from the first', async () => {
    const [first, second] = [await listen(), await listen()]
    const one = client([first.uri, second.uri])
    expect((await one.opened()).peerUri).toBe(first.uri)
    const lost = until(one.states, 'lost')
    await first.close({ drain: false })
    await lost
    expect((await one.opened()).peerUri).toBe(second.uri)
  })

  it('keeps its handler from connection to connection', async () => {
    let server: RingConnection | undefined
    const { uri } = await listen((connection) => (server = connection))
    const one = client(uri)
    one.handle((request) => bytes(`client: ${request.text()}`))
    await one.opened()
    await expect.poll(() => server).toBeDefined()
    expect(text((await server?.request(bytes('a'))) ?? bytes(''))).toBe('client: a')
    await server?.close({ drain: false })
    server = undefined
    await expect.poll(() => server).toBeDefined()
    expect(text((await (server as RingConnection | undefined)?.request(bytes('b'))) ?? bytes(''))).toBe(
      'client: b',
    )
  })

  it('passes the 32 bits of a message and of a request on', async () => {
    const seen: number[] = []
    const { uri } = await listen((connection) => {
      connection.messages.subscribe(({ immediate }) => seen.push(immediate))
      connection.handle(({ immediate }) => bytes(String(immediate)))
    })
    const one = client(uri)
    expect(text(await one.request(bytes(''), { immediate: 7 }))).toBe('7')
    one.send(bytes(''), 0xffffffff)
    await expect.poll(() => seen).toEqual([0xffffffff])
  })

  it('takes messages only while it is open, and writable() waits for that', async () => {
    const uri = (await listen()).uri
    await servers[0]?.close()
    const one = client(uri)
    expect([one.isOpen, one.send(bytes('x')), one.connection]).toEqual([false, false, undefined])
    const writable = one.writable()
    const texts: string[] = []
    await listen((connection) => connection.messages.subscribe((message) => texts.push(message.text())), uri)
    await writable
    expect(one.send(bytes('now'))).toBe(true)
    one.flush()
    await expect.poll(() => texts).toEqual(['now'])
  })

  it('sends all to a server that is slow, and across none of its closes hangs', async () => {
    let count = 0
    const { uri } = await listen((connection) => connection.messages.subscribe(() => count++))
    const one = client(uri)
    const messages = effort(20_000)
    for (let i = 0; i < messages; i++) while (!one.send(new Uint8Array(100))) await one.writable()
    await one.close({ timeout })
    expect(count).toBe(messages)
  })

  it('comes back many times, and neither descriptors nor memory are left behind', async () => {
    const server = await listen((connection) => {
      connection.messages.subscribe(() => connection.close({ drain: false }))
      connection.handle(() => bytes('here'))
    })
    const one = client(server.uri, { reconnect: { min: 1, max: 2 }, capacity: 65536 })
    one.messages.subscribe()
    const comeBack = async (times: number) => {
      for (let i = 0; i < times; i++) {
        const connection = await one.opened({ timeout })
        connection.send(bytes('close'))
        await connection.closed
      }
    }
    const bothOpen = async () =>
      expect(text(await one.request(bytes('are both ends open?'), { timeout }))).toBe('here')
    await comeBack(30)
    await bothOpen()
    const before = descriptors()
    const times = effort(100)
    const many = async () => {
      await comeBack(times)
      // The ends of the last connection may still be closing.
      await bothOpen()
      await eventually(() => descriptors() <= before + 8)
    }
    // Rings and staging regions of 100 connections would be 38 MiB at both ends.
    const limit = 24 * 2 ** 20
    expect(await growth(residentBytes, many, limit)).toBeLessThan(limit)
    expect(one.connection?.session?.epoch).toBeGreaterThan(times + 30)
  })

  it('that closes while it is open lets requests finish and takes no more', async () => {
    const [asked, refused] = [deferred<void>(), deferred<void>()]
    const { uri } = await listen((connection) =>
      connection.handle(async (request) => {
        asked.resolve()
        await refused.promise
        return request.copy()
      }),
    )
    const one = client(uri)
    await one.opened({ timeout })
    const answer = one.request(bytes('slow'), { timeout })
    await asked.promise
    const closing = one.close({ timeout })
    expect(() => one.send(bytes('late'))).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
    await expect(one.request(bytes('late'))).rejects.toMatchObject({ code: 'ESHUTDOWN' })
    refused.resolve()
    expect(await answer).toEqual(bytes('slow'))
    await closing
    await one.close()
    expect(follow(one.states)).toEqual(['closed'])
    expect(await firstValueFrom(one.messages.pipe(toArray()))).toEqual([])
  })
})

describe('a client', () => {
  const NOBODY = 'iwarp://127.0.0.1:1'

  it('waits longer and longer between its attempts, and says how long', async () => {
    const one = client(NOBODY, { reconnect: { min: 10, max: 40, maxAttempts: 6 } })
    const waits: number[] = []
    const attempts: number[] = []
    one.states.subscribe((state) => {
      if (state.state === 'waiting') waits.push(state.milliseconds)
      if (state.state === 'connecting') attempts.push(state.attempt)
    })
    expect(await one.closed).toMatchObject({ code: 'ECONNREFUSED' })
    expect(attempts).toEqual([1, 2, 3, 4, 5, 6])
    expect(waits).toHaveLength(5)
    for (const [at, wait] of waits.entries())
      expect(wait).toBeLessThanOrEqual([10, 20, 40, 40, 40][at] as number)
    const last = await until(one.states, 'closed')
    expect(last.reason).toBe(await one.closed)
    await expect(one.opened()).rejects.toMatchObject({ code: 'ESHUTDOWN' })
  })

  it('that never opens lets requests time out, and who waits abort', async () => {
    const one = client(NOBODY)
    await expect(one.request(bytes('x'), { timeout: 50 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    await expect(one.opened({ timeout: 50 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    const controller = new AbortController()
    const { signal } = controller
    const waiting = [one.request(bytes('x'), { signal }), one.writable({ signal }), one.opened({ signal })]
    setTimeout(() => controller.abort(new Error('enough')), 20)
    for (const one of await Promise.allSettled(waiting))
      expect(one).toMatchObject({ status: 'rejected', reason: { message: 'enough' } })
  })

  it('that closes while it waits or connects ends at once, and all who wait with it', async () => {
    // A wait for any of these would take an hour.
    const one = client(NOBODY, { reconnect: { min: 3_600_000, max: 3_600_000 } })
    const wait = { timeout: Number.POSITIVE_INFINITY }
    const waiting = [one.request(bytes('x'), wait), one.writable(), one.opened(wait)]
    await until(one.states, 'waiting')
    await one.close(wait)
    for (const one of await Promise.allSettled(waiting))
      expect(one).toMatchObject({ status: 'rejected', reason: { code: 'ESHUTDOWN' } })
    expect(await one.closed).toBeUndefined()
  })

  it('closes with its signal, and its reason', async () => {
    const server = await RingServer.listen('iwarp://127.0.0.1:0', { onConnection: () => {} })
    servers.push(server)
    const controller = new AbortController()
    const one = client(server.uri, { signal: controller.signal })
    const connection = await one.opened()
    controller.abort('no more')
    expect(await one.closed).toBe('no more')
    expect(await connection.closed).toBeUndefined()
    const late = client(server.uri, { signal: controller.signal })
    expect(await late.closed).toBe('no more')
  })

  it('keeps nothing of those who have waited for a connection in vain', async () => {
    const one = client(NOBODY, { reconnect: { min: 60_000, max: 60_000 } })
    await until(one.states, 'waiting')
    const message = bytes('x')
    const inVain = (count: number) =>
      Promise.allSettled(
        Array.from({ length: count }, (_, i) =>
          i % 2 === 0 ? one.request(message, { timeout: 1 }) : one.opened({ timeout: 1 }),
        ),
      )
    await inVain(1000)
    const many = async () => {
      for (let i = 0; i < 10; i++) await inVain(1000)
    }
    // 200 bytes of each of them.
    const limit = 2 * 2 ** 20
    expect(await growth(heap, many, limit)).toBeLessThan(limit)
  })

  it('waits as long as it is told to, and is told no nonsense', async () => {
    const one = client(NOBODY, { reconnect: { min: 60_000, max: 60_000 } })
    const timeout = Number.POSITIVE_INFINITY
    const waiting = [one.request(bytes('x'), { timeout }), one.opened({ timeout })]
    let settled = 0
    for (const each of waiting) each.catch(() => settled++)
    await expect(one.opened({ timeout: 50 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    expect(settled).toBe(0)
    for (const timeout of [Number.NaN, 0, -1, 2 ** 31]) {
      await expect(one.request(bytes('x'), { timeout })).rejects.toThrow(UsageError)
      await expect(one.opened({ timeout })).rejects.toThrow(UsageError)
      await expect(one.close({ timeout })).rejects.toThrow(UsageError)
      expect(() => new RingClient(NOBODY, { timeout })).toThrow(UsageError)
    }
    await one.close({ timeout })
    for (const each of await Promise.allSettled(waiting))
      expect(each).toMatchObject({ status: 'rejected', reason: { code: 'ESHUTDOWN' } })
  })

  it('closes for good when an address is wrong', async () => {
    const one = client('carrier-pigeon://roof')
    expect(await one.closed).toMatchObject({ name: 'UsageError' })
  })

  it('is disposed of as it is closed', async () => {
    let kept: RingClient
    {
      await using one = new RingClient(NOBODY)
      kept = one
    }
    expect(follow(kept.states)).toEqual(['closed'])
  })

  it('of an option out of range throws', () => {
    expect(() => new RingClient(NOBODY, { reconnect: { factor: 0 } })).toThrow('reconnect.factor')
    expect(() => new RingClient(NOBODY, { capacity: 5 })).toThrow('capacity')
    expect(() => new RingClient([])).toThrow('address')
  })

  it('and another are of different sessions', () => {
    expect(client(NOBODY).sessionId).not.toBe(client(NOBODY).sessionId)
    expect(client(NOBODY).sessionId).toMatch(/^[0-9a-f]{16}$/)
  })
})
