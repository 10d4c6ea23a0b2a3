// The messages that a RingClient receives and sends over successive connections, and its errors.
import { deferred } from '@rdmakit/verbs/internal'
import { firstValueFrom, lastValueFrom, toArray } from 'rxjs'
import { expect, it, onTestFinished } from 'vitest'
import {
  type ConnectOptions,
  type PollerOptions,
  type RequestContext,
  RingClient,
  type RingClientOptions,
  type RingConnection,
  RingServer,
  type RingServerOptions,
  type TransmitOptions,
} from '../../src/index.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { until } from '../helpers/states.js'
import { LARGE, next, READ_FROM } from '../helpers/transfers.js'
import { listenUri } from '../helpers/uris.js'

const timeout = HANG_MS
const QUICK = { reconnect: { min: 1, max: 5 } }
const text = (data: Uint8Array) => Buffer.from(data).toString()

/** A server whose connections say who they are, and are broken when they get a message. */
async function listen(options: Partial<RingServerOptions> = {}): Promise<RingServer> {
  let number = 0
  const server = await RingServer.listen(listenUri('shm'), {
    ...READ_FROM,
    timeout,
    onConnection(connection) {
      number++
      for (const which of ['first', 'second']) connection.send(Buffer.from(`${which} of ${number}`))
      connection.messages.subscribe(() => connection.close())
    },
    ...options,
  })
  onTestFinished(() => server.close({ drain: false }))
  return server
}

function client(uri: string, options: RingClientOptions = {}): RingClient {
  const made = new RingClient(uri, { ...QUICK, ...READ_FROM, timeout, ...options })
  onTestFinished(() => made.close({ drain: false }))
  return made
}

const EXPECTED = ['first of 1', 'second of 1', 'first of 2', 'second of 2', 'first of 3', 'second of 3']

/** Has the server end the connection after each second message, so that six come of three connections. */
function told(one: RingClient, got: string[], message: string): boolean {
  got.push(message)
  if (got.length % 2 === 0) one.send(new Uint8Array())
  return got.length === EXPECTED.length
}

it.each(['batches', 'viewBatches'] as const)(
  '%s go on with the next connection, and end with the client',
  async (way) => {
    const one = client((await listen()).uri)
    const got: string[] = []
    for await (const batch of one[way]({ limit: 1 }))
      for (const message of batch) if (told(one, got, message.text())) void one.close()
    expect(got).toEqual(EXPECTED)
  },
)

it.each(['batches', 'viewBatches'] as const)(
  '%s have what had come on a connection that was opened and lost between two calls',
  async (way) => {
    const server = await listen({
      onConnection(connection) {
        const { epoch } = connection.session as { epoch: number }
        for (const which of ['first', 'second']) connection.send(Buffer.from(`${which} of ${epoch}`))
      },
    })
    const one = client(server.uri)
    const batches = one[way]({ limit: 1 })
    const take = async () => {
      const { value } = await batches.next()
      return [...(value ?? [])].map((message) => message.text())
    }
    const got = await take()
    // The consumer is busy meanwhile.
    for (const epoch of [1, 2]) {
      await expect.poll(() => one.connection?.session?.epoch, { timeout }).toBe(epoch)
      const connection = one.connection as RingConnection
      await expect.poll(() => connection.statistics().messagesWaiting).toBe(epoch)
      for (const accepted of server.connections) await accepted.close()
      await connection.closed
    }
    for (let i = 1; i < EXPECTED.length; i++) got.push(...(await take()))
    expect(got).toEqual(EXPECTED)
    await batches.return()
  },
)

const tellEpoch = (connection: RingConnection) =>
  connection.send(Buffer.from(`of ${connection.session?.epoch}`))

/** Twenty connections end, one after the other, with a message each that nobody but the first one's consumer takes. */
async function twentyEnd(server: RingServer, one: RingClient) {
  for (let epoch = 1; epoch <= 20; epoch++) {
    await expect.poll(() => one.connection?.session?.epoch, { timeout }).toBe(epoch)
    const connection = one.connection as RingConnection
    if (epoch > 1) await expect.poll(() => connection.statistics().messagesWaiting).toBe(1)
    for (const accepted of server.connections) await accepted.close()
    await connection.closed
  }
  await expect.poll(() => one.connection?.session?.epoch, { timeout }).toBe(21)
}

it('batches of a consumer that is busy for long are of the last 16 connections: 2 s', async () => {
  const server = await listen({ onConnection: tellEpoch })
  const one = client(server.uri)
  const batches = one.batches()
  const take = async () => [...((await batches.next()).value ?? [])].map((message) => message.text())
  expect(await take()).toEqual(['of 1'])
  await twentyEnd(server, one)
  for (let epoch = 6; epoch <= 21; epoch++) expect(await take()).toEqual([`of ${epoch}`])
  await batches.return()
})

it.each(['consume', 'consumeViews'] as const)(
  '%s that is busy for long goes on with the last 16 connections: 2 s',
  async (way) => {
    const server = await listen({ onConnection: tellEpoch })
    const one = client(server.uri)
    const got: string[] = []
    const busy = deferred<void>()
    const consuming = one[way](async (message) => {
      got.push(message.text())
      await busy.promise
    }).subscribe()
    await expect.poll(() => got, { timeout }).toEqual(['of 1'])
    await twentyEnd(server, one)
    busy.resolve()
    await expect.poll(() => got.at(-1), { timeout }).toBe('of 21')
    expect(got).toEqual(['of 1', ...Array.from({ length: 16 }, (_, i) => `of ${i + 6}`)])
    consuming.unsubscribe()
  },
)

it.each(['consume', 'consumeViews'] as const)(
  '%s goes on with the next connection, and completes with the client',
  async (way) => {
    const one = client((await listen()).uri)
    const got: string[] = []
    const all = lastValueFrom(
      one[way](async (message) => {
        await new Promise((later) => setImmediate(later))
        if (told(one, got, message.text())) void one.close()
        return got.length
      }).pipe(toArray()),
    )
    expect(await all).toEqual([1, 2, 3, 4, 5, 6])
    expect(got).toEqual(EXPECTED)
  },
)

it('views are released, and messages are not', async () => {
  const one = client((await listen()).uri)
  expect((await firstValueFrom(one.views)).isReleased).toBe(true)
  expect(text((await firstValueFrom(one.messages)).data)).toBe('second of 1')
})

it('batches that are left while there is no connection end at once, and with their signal', async () => {
  const one = client(listenUri('shm'))
  const batches = one.batches()
  const waiting = batches.next()
  expect(await batches.return()).toEqual({ done: true, value: undefined })
  expect(await waiting).toEqual({ done: true, value: undefined })
  const stop = new AbortController()
  const stopped = one.batches({ signal: stop.signal }).next()
  stop.abort(new Error('enough'))
  await expect(stopped).rejects.toThrow('enough')
})

it('large messages go both ways', async () => {
  const got = deferred<Uint8Array>()
  const accepted = deferred<RingConnection>()
  const server = await listen({
    onConnection(connection) {
      connection.messages.subscribe(({ data }) => got.resolve(data))
      accepted.resolve(connection)
    },
  })
  const one = client(server.uri)
  const offered = next(one.offers)
  await one.transmit(pattern(LARGE, 1), { timeout, immediate: 3 })
  expect(Buffer.compare(await got.promise, pattern(LARGE, 1))).toBe(0)
  const sent = (await accepted.promise).transmit(pattern(LARGE, 2), { timeout })
  const message = await (await offered).accept()
  expect(Buffer.compare(message.data, pattern(LARGE, 2))).toBe(0)
  message.release()
  await sent
})

it('a transmit whose connection is lost says so', async () => {
  const server = await listen({
    onConnection: (connection) => connection.offers.subscribe(() => connection.close({ drain: false })),
  })
  const sent = client(server.uri).transmit(pattern(LARGE, 1), { timeout })
  await expect(sent).rejects.toMatchObject({ code: 'ECONNRESET', cause: { name: 'VerbsError' } })
})

it('a handler has the connection that asks, and what it sends later goes there or nowhere', async () => {
  const heard: string[] = []
  const server = await listen({
    onConnection(connection) {
      const { epoch } = connection.session as { epoch: number }
      connection.messages.subscribe((message) => heard.push(`${message.text()} on ${epoch}`))
      void connection.request(new Uint8Array(), { timeout }).catch(() => {})
    },
  })
  const one = client(server.uri)
  const contexts: RequestContext[] = []
  one.handleViews((_, context) => {
    contexts.push(context)
    return new Promise(() => {})
  })
  await expect.poll(() => contexts.length).toBe(1)
  const [first] = contexts as [RequestContext]
  for (const connection of server.connections) await connection.close({ drain: false })
  await expect.poll(() => contexts.length).toBe(2)
  expect(first.signal.aborted).toBe(true)
  expect(() => first.connection.send(Buffer.from('late'))).toThrow(
    expect.objectContaining({ code: 'ESHUTDOWN' }),
  )
  contexts[1]?.connection.send(Buffer.from('in time'))
  await expect.poll(() => heard).toEqual(['in time on 2'])
})

it('that there is no connection is said with why: the last attempt, or how the last one ended', async () => {
  const nobody = client(listenUri('shm'))
  await until(nobody.states, 'waiting')
  await expect(nobody.request(new Uint8Array(), { timeout: 20 })).rejects.toMatchObject({
    code: 'ETIMEDOUT',
    message: /no open connection: .*ECONNREFUSED|ENOENT/,
    cause: { name: 'VerbsError' },
  })
  const server = await listen({ onConnection: () => {} })
  const left = client(server.uri, { reconnect: { min: 60_000, max: 60_000 } })
  await left.opened({ timeout })
  await server.close()
  await until(left.states, 'waiting')
  await expect(left.opened({ timeout: 20 })).rejects.toMatchObject({
    code: 'ETIMEDOUT',
    message: /no open connection: .*the peer closed it/,
  })
})

it('that the client is closed is said with why: close, its signal, or that it gave up', async () => {
  const closed = client(listenUri('shm'))
  await closed.close()
  expect(() => closed.send(new Uint8Array())).toThrow(/the client is closed \(ESHUTDOWN\)/)
  const stop = new AbortController()
  const stopped = client(listenUri('shm'), { signal: stop.signal })
  stop.abort(new Error('time to go'))
  await stopped.closed
  await expect(stopped.request(new Uint8Array())).rejects.toMatchObject({
    code: 'ESHUTDOWN',
    message: /closed: time to go/,
    cause: stop.signal.reason,
  })
  const gaveUp = client(listenUri('shm'), { reconnect: { min: 1, maxAttempts: 1 } })
  await gaveUp.closed
  await expect(gaveUp.writable()).rejects.toMatchObject({ code: 'ESHUTDOWN', cause: { name: 'VerbsError' } })
})

it('a request whose connection is lost says so, with the cause', async () => {
  const server = await listen({
    onConnection: (connection) => connection.handle(() => connection.close({ drain: false }) as never),
  })
  const asked = client(server.uri).request(new Uint8Array(), { timeout })
  await expect(asked).rejects.toMatchObject({ code: 'ECONNRESET', cause: { code: 'ECONNRESET' } })
})

it('the bytes of a request may be reused when the call returns, whether or not there is a connection', async () => {
  const server = await listen({ onConnection: (one) => one.handle(({ data }) => data) })
  const one = client(server.uri)
  const ask = (bytes: Uint8Array) => {
    const asked = one.request(bytes, { timeout })
    bytes.fill(9)
    return asked
  }
  expect(one.isOpen).toBe(false)
  expect(await ask(Buffer.from([1]))).toEqual(new Uint8Array([1]))
  expect(one.isOpen).toBe(true)
  expect(await ask(Buffer.from([2]))).toEqual(new Uint8Array([2]))
})

it('what is no such number is refused without a connection too', async () => {
  const one = client('iwarp://127.0.0.1:1')
  const refused = { name: 'UsageError', message: expect.stringMatching(/immediate must be a whole number/) }
  for (const immediate of [-1, 1.5, 2 ** 32]) {
    expect(() => one.send(new Uint8Array(1), immediate)).toThrow(expect.objectContaining(refused))
    await expect(one.request(new Uint8Array(1), { immediate })).rejects.toMatchObject(refused)
    await expect(one.transmit(new Uint8Array(1), { immediate })).rejects.toMatchObject(refused)
  }
  expect(() => one.batches({ limit: 0 })).toThrow(/limit must be a whole number/)
  expect(one.send(new Uint8Array(1), 1)).toBe(false)
})

it('every option may be undefined', async () => {
  const nothing: RingServerOptions = {
    onConnection: () => {},
    admit: undefined,
    onError: undefined,
    signal: undefined,
    maxConnections: undefined,
    poller: undefined,
    timeout: undefined,
  }
  const connect: ConnectOptions = {
    poller: undefined,
    capacity: undefined,
    receiveDepth: undefined,
    sendDepth: undefined,
    batchFrames: undefined,
    batchBytes: undefined,
    signalEvery: undefined,
    maxInlineData: undefined,
    notification: undefined,
    applicationData: undefined,
    maxPeerCapacity: undefined,
    rendezvousThreshold: undefined,
    maxTransferMemory: undefined,
    maxMessageSize: undefined,
    debug: undefined,
    heartbeat: undefined,
    deadAfter: undefined,
    idleTimeout: undefined,
    closeWhenIdle: undefined,
    session: undefined,
    timeout: undefined,
    signal: undefined,
  }
  const transmit: TransmitOptions = {
    immediate: undefined,
    signal: undefined,
    timeout: undefined,
    onProgress: undefined,
  }
  const poller: PollerOptions = { mode: undefined, cpu: undefined }
  const { session: _, closeWhenIdle: __, ...rest } = connect
  const server = await listen({ ...nothing, ...rest, onConnection: (one) => one.handle(({ data }) => data) })
  const one = client(server.uri, {
    ...rest,
    reconnect: { min: undefined, max: undefined, factor: undefined, maxAttempts: undefined },
  })
  const asked = one.request(new Uint8Array([1]), {
    timeout: undefined,
    signal: undefined,
    immediate: undefined,
    idempotent: undefined,
  })
  expect(await asked).toEqual(new Uint8Array([1]))
  await one.transmit(new Uint8Array(1), transmit)
  expect(one.batches({ limit: undefined, signal: undefined })).toBeDefined()
  await one.writable({ signal: undefined })
  await one.connection?.writable({ signal: undefined })
  expect(poller.mode).toBeUndefined()
})
