// onConnection and admit that are async, throw, take their time or are not there.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { deferred } from '@rdmakit/verbs/internal'
import { expect, it, onTestFinished } from 'vitest'
import { RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { HANG_MS } from '../helpers/processes.js'
import { listenUri } from '../helpers/uris.js'

const timeout = HANG_MS

async function listen(options: Partial<RingServerOptions>): Promise<RingServer> {
  const server = await RingServer.listen(listenUri('shm'), { timeout, onConnection: () => {}, ...options })
  onTestFinished(() => server.close({ drain: false }))
  return server
}

async function connect({ uri }: RingServer): Promise<RingConnection> {
  const connection = await RingConnection.connect(uri, { timeout })
  onTestFinished(() => connection.close({ drain: false }))
  return connection
}

it.each([undefined, null, 'a function', {}])(
  'a server whose onConnection is %s listens to nothing',
  async (one) => {
    const listening = RingServer.listen(listenUri('shm'), {
      onConnection: one,
    } as unknown as RingServerOptions)
    await expect(listening).rejects.toMatchObject({ name: 'UsageError', message: /onConnection/ })
  },
)

it.each([
  [
    'throws',
    () => {
      throw new Error('not today')
    },
  ],
  [
    'rejects',
    async () => {
      throw new Error('not today')
    },
  ],
  [
    'rejects later',
    async () => {
      await new Promise((later) => setImmediate(later))
      throw new Error('not today')
    },
  ],
])('an onConnection that %s breaks the connection, and onError hears of it', async (_, onConnection) => {
  const failures: unknown[] = []
  const server = await listen({ onConnection, onError: (failure) => failures.push(failure) })
  const connection = await connect(server)
  expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
  await expect.poll(() => failures).toEqual([expect.objectContaining({ message: 'not today' })])
  await expect.poll(() => server.counts.connections).toBe(0)
})

it.each(['', 'async'])(
  'what onError throws is uncaught, and the connection is closed: %s onConnection',
  async (kind) => {
    const program = `
    import { RingConnection, RingServer } from '@rdmakit/ring-transport'
    const uncaught = new Promise((resolve) => process.on('uncaughtException', resolve))
    const server = await RingServer.listen(${JSON.stringify(listenUri('shm'))}, {
      onConnection: ${kind} () => { throw new Error('not today') },
      onError: () => { throw new Error('mine') },
    })
    const connection = await RingConnection.connect(server.uri)
    console.log((await uncaught).message, (await connection.closed).code, server.counts.connections)
    process.exit(0)`
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ['--input-type=module', '--eval', program],
      { cwd: import.meta.dirname, timeout: 20_000 },
    )
    expect(stdout).toBe('mine ECONNRESET 0\n')
  },
)

it('requests wait for the handler of an onConnection that is async', async () => {
  const door = deferred<void>()
  const server = await listen({
    async onConnection(connection) {
      await door.promise
      connection.handle((request) => request.data)
      await connection.closed
    },
  })
  const connection = await connect(server)
  const answers = [1, 2, 3].map((byte) => connection.request(new Uint8Array([byte]), { timeout }))
  await expect.poll(() => [...server.connections][0]?.statistics().requestsRunning).toBe(3)
  door.resolve()
  expect(await Promise.all(answers)).toEqual([1, 2, 3].map((byte) => new Uint8Array([byte])))
})

it('and fail with ENOSYS when it ends without one', async () => {
  const server = await listen({ onConnection: () => new Promise((later) => setImmediate(later)) })
  const connection = await connect(server)
  await expect(connection.request(new Uint8Array(), { timeout })).rejects.toMatchObject({ code: 'ENOSYS' })
})

it('an async admit takes and refuses, and others come meanwhile', async () => {
  const door = deferred<void>()
  const server = await listen({
    async admit(data) {
      if (data[0] === 0) await door.promise
      return data[0] === 2 ? 'no twos' : true
    },
  })
  const ask = (byte: number) =>
    RingConnection.connect(server.uri, { timeout, applicationData: new Uint8Array([byte]) })
  const slow = ask(0)
  await expect.poll(() => server.counts.arriving).toBe(1)
  await (await ask(1)).close()
  await expect(ask(2)).rejects.toMatchObject({ code: 'ECONNREFUSED', message: /no twos/ })
  door.resolve()
  await (await slow).close()
  expect(server.counts).toMatchObject({ accepted: 2, refused: 1, arriving: 0 })
})

it.each([
  [
    'throws',
    () => {
      throw new Error('the database is down')
    },
  ],
  [
    'rejects',
    async () => {
      throw new Error('the database is down')
    },
  ],
])('an admit that %s refuses, and onError hears of it', async (_, admit) => {
  const failures: unknown[] = []
  const server = await listen({ admit, onError: (failure) => failures.push(failure) })
  await expect(connect(server)).rejects.toMatchObject({ code: 'ECONNREFUSED', message: /failed to decide/ })
  expect(failures).toEqual([expect.objectContaining({ message: 'the database is down' })])
  expect(server.counts).toMatchObject({ accepted: 0, refused: 1, arriving: 0 })
})

it.each([undefined, null, false, 1, {}])(
  'an admit that returns %s admits nobody, and onError hears of it',
  async (one) => {
    const failures: unknown[] = []
    const onError = (failure: unknown) => failures.push(failure)
    for (const admit of [() => one, async () => one]) {
      const server = await listen({ admit: admit as unknown as () => true, onError })
      await expect(connect(server)).rejects.toMatchObject({
        code: 'ECONNREFUSED',
        message: /failed to decide/,
      })
      expect(server.counts).toMatchObject({ accepted: 0, refused: 1, arriving: 0 })
    }
    const usage = { name: 'UsageError', message: expect.stringMatching(/admit must return true or a string/) }
    expect(failures).toEqual([expect.objectContaining(usage), expect.objectContaining(usage)])
  },
)

it('an admit that never decides keeps no server from closing, and is over with its time', async () => {
  const server = await listen({ admit: () => new Promise(() => {}), timeout: 50 })
  await expect(connect(server)).rejects.toMatchObject({ code: 'ECONNREFUSED', message: /failed to decide/ })
  await expect.poll(() => server.counts).toMatchObject({ arriving: 0, refused: 1 })
  const patient = await listen({ admit: () => new Promise(() => {}) })
  const refused = connect(patient).catch(({ code }) => code)
  await expect.poll(() => patient.counts.arriving).toBe(1)
  await patient.close({ drain: false })
  expect(await refused).toMatch(/^E/)
})

it('a server that closes while admit decides takes nobody any more', async () => {
  const door = deferred<void>()
  const server = await listen({ admit: () => door.promise.then(() => true as const) })
  const asking = connect(server).catch(({ message }) => message)
  await expect.poll(() => server.counts.arriving).toBe(1)
  const closing = server.close({ timeout })
  door.resolve()
  await closing
  expect(await asking).toMatch(/the server is closed/)
  expect(server.counts.accepted).toBe(0)
})

it('a handler that closes its server is answered for, and one that waits for that is told so', async () => {
  let server!: RingServer
  const closed = deferred<unknown>()
  const reasons: unknown[] = []
  server = await listen({
    onConnection(connection) {
      void connection.closed.then((reason) => reasons.push(reason))
      connection.handle(async ({ length }) => {
        const closing = server.close({ timeout: length === 0 ? timeout : 50 })
        if (length === 0) void closing.then(closed.resolve)
        else await closing
        return new Uint8Array([7])
      })
    },
  })
  const connection = await connect(server)
  expect(await connection.request(new Uint8Array(), { timeout })).toEqual(new Uint8Array([7]))
  await closed.promise
  expect(reasons).toEqual([undefined])

  server = await listen({
    onConnection(one) {
      void one.closed.then((reason) => reasons.push(reason))
      one.handle(async () => {
        await server.close({ timeout: 50 })
        return new Uint8Array([7])
      })
    },
  })
  const other = await connect(server)
  await expect(other.request(new Uint8Array(), { timeout })).rejects.toMatchObject({ code: 'ECONNRESET' })
  await expect
    .poll(() => reasons[1])
    .toMatchObject({ message: /1 request\(s\) that a handler has not answered/ })
})
