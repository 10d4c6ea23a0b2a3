import { setImmediate as turn } from 'node:timers/promises'
import { ConnectionId, UsageError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { afterEach, describe, expect, it } from 'vitest'
import { RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { encodeHandshake } from '../../src/setup/handshake.js'
import { Windows } from '../../src/setup/ring-layout.js'
import { HANG_MS } from '../helpers/processes.js'
import { follow } from '../helpers/states.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const open: { close(options?: { drain?: boolean }): Promise<void> }[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close({ drain: false })))
})

const bytes = (text: string) => new TextEncoder().encode(text)

describe.each(PROVIDERS)('a server over %s that closes', (provider) => {
  async function listen(options: Partial<RingServerOptions> = {}) {
    const server = await RingServer.listen(listenUri(provider), { onConnection: () => {}, ...options })
    open.push(server)
    return server
  }
  async function connect(server: RingServer) {
    const connection = await RingConnection.connect(server.uri, { timeout: HANG_MS })
    open.push(connection)
    return connection
  }

  it('refuses new connections, answers requests and delivers what was accepted, both ways', async () => {
    const texts: string[] = []
    const answer = deferred<void>()
    const server = await listen({
      onConnection(connection) {
        connection.messages.subscribe((message) => texts.push(message.text()))
        connection.handle(async (request) => {
          await answer.promise
          return request.copy()
        })
      },
    })
    const { uri } = server
    const one = await connect(server)
    const got: string[] = []
    one.messages.subscribe((message) => got.push(message.text()))
    const slow = one.request(bytes('slow'), { timeout: HANG_MS })
    one.send(bytes('to the server'))
    one.flush()
    await expect.poll(() => texts).toEqual(['to the server'])
    for (const connection of server.connections) connection.send(bytes('from the server'))
    const closing = server.close({ timeout: HANG_MS })
    expect(server.isListening).toBe(false)
    await expect(RingConnection.connect(uri)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    answer.resolve()
    expect(await slow).toEqual(bytes('slow'))
    await closing
    await server.closed
    expect(await one.closed).toBeUndefined()
    expect(got).toEqual(['from the server'])
    expect(server.counts).toMatchObject({ connections: 0, arriving: 0, accepted: 1 })
  })

  it('waits as long as it is told to, and is told no nonsense', async () => {
    const [asked, closing] = [deferred<void>(), deferred<void>()]
    const server = await listen({
      onConnection(connection) {
        connection.handle(async (request) => {
          asked.resolve()
          await closing.promise
          return request.copy()
        })
      },
    })
    const one = await connect(server)
    const answer = one.request(bytes('slow'), { timeout: HANG_MS })
    await asked.promise
    for (const timeout of [Number.NaN, 0, -1, 2 ** 31])
      await expect(server.close({ timeout })).rejects.toThrow(UsageError)
    expect(server.isListening).toBe(true)
    const closed = server.close({ timeout: Number.POSITIVE_INFINITY })
    // A timer that takes infinity for a millisecond has rung by then.
    await new Promise((resolve) => setTimeout(resolve, 50))
    closing.resolve()
    await closed
    expect(await answer).toEqual(bytes('slow'))
    expect(await one.closed).toBeUndefined()
  })

  it('breaks what does not end within the timeout', async () => {
    /** A server that has been asked and does not answer. */
    const busy = async () => {
      const asked = deferred<void>()
      const server = await listen({
        onConnection: (one) =>
          one.handle(() => {
            asked.resolve()
            return new Promise(() => {})
          }),
      })
      const one = await connect(server)
      const timeout = Number.POSITIVE_INFINITY
      const answer = one.request(bytes('for ever'), { timeout }).catch(({ code }) => code)
      await asked.promise
      return { server, answer }
    }
    const [patient, hasty] = [await busy(), await busy()]
    let over = false
    const closing = patient.server.close({ timeout: HANG_MS }).then(() => {
      over = true
    })
    await hasty.server.close({ timeout: 100 })
    expect(await hasty.answer).toBe('ECONNRESET')
    expect(over).toBe(false)
    await patient.server.close({ drain: false })
    await closing
  })

  it('gracefully breaks off when it is then told to close at once', async () => {
    const asked = deferred<void>()
    const server = await listen({
      onConnection: (one) =>
        one.handle(() => {
          asked.resolve()
          return new Promise(() => {})
        }),
    })
    const one = await connect(server)
    const timeout = Number.POSITIVE_INFINITY
    const answer = one.request(bytes('for ever'), { timeout }).catch(({ code }) => code)
    await asked.promise
    const graceful = server.close({ timeout })
    await server.close({ drain: false })
    await graceful
    expect(await answer).toBe('ECONNRESET')
    expect(await one.closed).toMatchObject({ code: 'ECONNRESET' })
    expect(server.counts.connections).toBe(0)
  })

  it('because its signal aborts, closes in good order', async () => {
    const controller = new AbortController()
    const server = await listen({ signal: controller.signal })
    const one = await connect(server)
    const states = follow(one.states)
    controller.abort()
    await server.closed
    expect(await one.closed).toBeUndefined()
    expect(states.at(-1)).toBe('closed 0')
    await expect(listen({ signal: controller.signal })).rejects.toThrow(/abort/i)
  })

  it('does not wait for a client that asked and went away', async () => {
    const failures: unknown[] = []
    const timeout = Number.POSITIVE_INFINITY
    const server = await listen({ timeout, onError: (failure) => failures.push(failure) })
    const id = await ConnectionId.resolve(server.uri)
    const pd = id.context.allocateProtectionDomain()
    id.createQueuePair(pd, { sendQueue: id.context.createCompletionQueue({ entries: 300 }) })
    const ring = await pd.allocateMemoryRegion(4096, ['remote-write'])
    const connecting = id
      .connect({
        privateData: encodeHandshake({
          version: 3,
          writeWithImmediate: true,
          windows: new Windows(12, 1),
          receiveDepth: 8,
          longest: 0,
          remoteKey: ring.remoteKey,
          address: ring.address,
          session: undefined,
          applicationData: new Uint8Array(),
        }),
      })
      .catch(() => {})
    await turn()
    id.close()
    await server.close({ drain: false })
    expect(server.counts.arriving).toBe(0)
    await connecting
    pd.close()
  })

  it('counts what came', async () => {
    const server = await listen({ maxConnections: 1 })
    const one = await connect(server)
    await expect(connect(server)).rejects.toThrow('too many')
    expect(server.counts).toEqual({ connections: 1, arriving: 0, accepted: 1, refused: 1, stale: 0 })
    await one.close()
    await expect.poll(() => server.counts.connections).toBe(0)
  })
})
