// Protobuf services over rings: generated classes and reflection, and all that can be wrong with a call.
import { UsageError } from '@rdmakit/verbs'
import protobuf from 'protobufjs'
import { afterEach, describe, expect, it } from 'vitest'
import {
  client,
  RemoteError,
  RingClient,
  type RingConnection,
  RingServer,
  type ServiceCaller,
  serve,
} from '../../src/index.js'
import { fnv1a, methodsOf } from '../../src/service/method.js'
import { rdmakit } from '../generated/calculator.js'
import { type Pair, pair } from '../helpers/pair.js'
import { until } from '../helpers/states.js'

const { Calculator, Other, Streaming, Operands, Result } = rdmakit.test

const ends: Pair[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end[Symbol.asyncDispose]()
})
async function connected() {
  const made = await pair('iwarp://127.0.0.1:0')
  ends.push(made)
  return made
}

const calculator = {
  add: ({ left, right }: rdmakit.test.Operands) => ({ value: left + right }),
  async divide({ left, right }: rdmakit.test.Operands) {
    if (right === 0) throw Object.assign(new Error('by zero'), { code: 'EDOM' })
    await null
    return { value: left / right }
  },
  reverse: ({ data }: rdmakit.test.Blob) => ({ data: data.reverse() }),
}

const root = protobuf.parse(
  `syntax = "proto3"; package rdmakit.test;
   service Calculator { rpc Add (Operands) returns (Result); rpc Reverse (Blob) returns (Blob); }
   service Streaming { rpc Collect (stream Operands) returns (Result); }
   service Colliding { rpc M549599 (Blob) returns (Blob); rpc M712382 (Blob) returns (Blob); }
   message Operands { sint32 left = 1; sint32 right = 2; }
   message Result { sint32 value = 1; }
   message Blob { bytes data = 1; }`,
).root

it('the hash is FNV-1a (draft-eastlake-fnv, appendix C)', () => {
  expect([fnv1a(''), fnv1a('a'), fnv1a('foobar')]).toEqual([0x811c9dc5, 0xe40c292c, 0xbf9cf968])
})

it('generated classes and reflection name the same methods', () => {
  const generated = methodsOf(Calculator).map(({ name, path, id }) => ({ name, path, id }))
  expect(generated.map(({ path }) => path)).toEqual([
    '/rdmakit.test.Calculator/Add',
    '/rdmakit.test.Calculator/Divide',
    '/rdmakit.test.Calculator/Reverse',
  ])
  const reflected = methodsOf(root.lookupService('Calculator')).map(({ name, path, id }) => ({
    name,
    path,
    id,
  }))
  expect(reflected).toEqual([generated[0], generated[2]])
})

describe('definition', () => {
  it('a method that streams is refused', () => {
    expect(() => methodsOf(Streaming)).toThrow(UsageError)
    expect(() => methodsOf(Streaming)).toThrow(/\/rdmakit\.test\.Streaming\/Count streams/)
    expect(() => methodsOf(root.lookupService('Streaming'))).toThrow(/Collect streams/)
  })
  it('two methods of the same hash are refused', () => {
    expect(() => methodsOf(root.lookupService('Colliding'))).toThrow(
      /M712382 and .*M549599 have the same hash/,
    )
  })
  it('what is no service is refused', () => {
    expect(() => methodsOf(class {} as never)).toThrow(/not a service class/)
    expect(() => methodsOf({} as never)).toThrow(/a service is/)
  })
  it('generated classes work as before', async () => {
    methodsOf(Calculator)
    const direct = new Calculator((_, bytes, callback) => {
      const { left } = Operands.decode(bytes)
      callback(null, Result.encode({ value: -left }).finish())
    })
    expect((await direct.add({ left: 3 })).value).toBe(-3)
  })
})

describe('calls', () => {
  it('of generated classes', async () => {
    const { a, b } = await connected()
    serve(b, Calculator, calculator)
    const { add, divide, reverse } = client(a, Calculator)
    const sum = await add({ left: 40, right: 2 })
    expect(sum).toBeInstanceOf(Result)
    expect(sum.value).toBe(42)
    expect((await divide({ left: 84, right: 2 })).value).toBe(42)
    expect([...(await reverse({ data: new Uint8Array([1, 2, 3]) })).data]).toEqual([3, 2, 1])
    await expect(divide({ left: 1 })).rejects.toMatchObject({
      name: 'RemoteError',
      code: 'EDOM',
      message: 'by zero',
    })
  })
  it('by reflection, to a peer with generated classes', async () => {
    const { a, b } = await connected()
    serve(b, Calculator, calculator)
    const reflected = client(a, root.lookupService('Calculator'))
    expect(await reflected.add?.({ left: 40, right: 2 })).toMatchObject({ value: 42 })
  })
  it('by reflection, served by reflection, many at a time', async () => {
    const { a, b } = await connected()
    serve(b, root.lookupService('Calculator'), {
      add: ({ left, right }) => ({ value: Number(left) + Number(right) }),
      reverse: (blob) => blob,
    })
    const { add } = client(a, Calculator)
    const sums = await Promise.all(Array.from({ length: 500 }, (_, left) => add({ left, right: 1 })))
    expect(sums.map(({ value }) => value)).toEqual(Array.from({ length: 500 }, (_, left) => left + 1))
  })
  it('of several services on one connection, until one is withdrawn', async () => {
    const { a, b } = await connected()
    const withdraw = serve(b, Calculator, calculator)
    serve(b, Other, { negate: ({ left }: rdmakit.test.Operands) => ({ value: -left }) })
    expect(() => serve(b, Calculator, calculator)).toThrow(/already/)
    expect((await client(a, Other).negate({ left: 5 })).value).toBe(-5)
    expect((await client(a, Calculator).add({ left: 5 })).value).toBe(5)
    withdraw()
    await expect(client(a, Calculator).add({})).rejects.toMatchObject({ code: 'ENOSYS' })
    expect((await client(a, Other).negate({ left: 6 })).value).toBe(-6)
  })
})

it('is called by a client that connects again, and served by it', async () => {
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    onConnection: (connection) => void serve(connection, Calculator, calculator),
  })
  const caller = new RingClient(server.uri)
  try {
    serve(caller, Other, { negate: ({ left }: rdmakit.test.Operands) => ({ value: -left }) })
    const { add } = client(caller, Calculator)
    expect((await add({ left: 1, right: 2 })).value).toBe(3)
    const [first] = [...server.connections]
    // Requests from before the client knows that its connection has ended fail with it.
    const known = until(caller.states, 'connecting')
    await first?.close({ drain: false })
    await known
    expect((await add({ left: 3, right: 4 })).value).toBe(7)
    const [second] = [...server.connections] as [RingConnection]
    expect(second).not.toBe(first)
    expect((await client(second, Other).negate({ left: 8 })).value).toBe(-8)
  } finally {
    await caller.close()
    await server.close()
  }
})

describe('failures', () => {
  it('a method that is not served is ENOSYS', async () => {
    const { a, b } = await connected()
    serve(b, Other, { negate: () => ({}) })
    const call = client(a, Calculator).add({ left: 1 })
    await expect(call).rejects.toBeInstanceOf(RemoteError)
    await expect(call).rejects.toMatchObject({ code: 'ENOSYS' })
  })
  it('a method that is not implemented is refused at once', async () => {
    const { b } = await connected()
    expect(() => serve(b, Calculator, { add: calculator.add } as never)).toThrow(
      /"divide" is not implemented/,
    )
  })
  it('a request that cannot be decoded is EBADMSG, and the next one is answered', async () => {
    const { a, b } = await connected()
    serve(b, Calculator, calculator)
    const immediate = fnv1a('/rdmakit.test.Calculator/Add')
    for (const bytes of [[0xff], [0x08], [0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], [0x0f]])
      await expect(a.request(new Uint8Array(bytes), { immediate })).rejects.toMatchObject({ code: 'EBADMSG' })
    expect((await client(a, Calculator).add({ left: 1 })).value).toBe(1)
  })
  it('a response that cannot be decoded is EBADMSG', async () => {
    const { a, b } = await connected()
    b.handle(() => new Uint8Array([0x0a, 0x7f]))
    await expect(client(a, Calculator).add({})).rejects.toMatchObject({ name: 'VerbsError', code: 'EBADMSG' })
  })
  it('fields that are not the request’s are refused before anything is sent', async () => {
    const { a } = await connected()
    const { add } = client(a, Calculator)
    await expect(add({ left: 'three' } as never)).rejects.toThrow(/left: integer expected/)
    await expect(add(null as never)).rejects.toThrow(/a message is an object/)
  })
  it('what the implementation returns is checked', async () => {
    const { a, b } = await connected()
    serve(b, Calculator, {
      ...calculator,
      add: () => ({ value: 'x' }) as never,
      divide: () => undefined as never,
    })
    await expect(client(a, Calculator).add({})).rejects.toMatchObject({ code: 'EINVAL' })
    await expect(client(a, Calculator).divide({})).rejects.toMatchObject({ code: 'EINVAL' })
  })
  it('a call has a deadline and can be aborted', async () => {
    const { a, b } = await connected()
    serve(b, Calculator, { ...calculator, add: () => new Promise(() => {}) })
    const { add } = client(a, Calculator, { timeout: 30 })
    await expect(add({})).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    await expect(
      add({}, { timeout: Number.POSITIVE_INFINITY, signal: AbortSignal.timeout(20) }),
    ).rejects.toMatchObject({
      name: 'TimeoutError',
    })
    expect(() => client(a, Calculator, { timeout: 0 })).toThrow(UsageError)
  })

  it('a call that names no time has that of its client, also where it says so', async () => {
    const times: unknown[] = []
    const caller: ServiceCaller = {
      request: async (_, options) => {
        times.push(options?.timeout)
        return new Uint8Array()
      },
    }
    const { add } = client(caller, Calculator, { timeout: 60_000 })
    for (const options of [undefined, {}, { timeout: undefined }, { timeout: 7 }]) await add({}, options)
    expect(times).toEqual([60_000, 60_000, 60_000, 7])
  })
})

it('a method is told its connection, and an idempotent call is made again on the next one', async () => {
  const seen: (RingConnection | undefined)[] = []
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    onConnection: (connection) =>
      serve(connection, Calculator, {
        ...calculator,
        async add({ left, right }: rdmakit.test.Operands, context) {
          seen.push(context.connection === connection ? connection : undefined)
          if (seen.length === 1) await connection.close({ drain: false })
          return { value: left + right }
        },
      }),
  })
  const one = new RingClient(server.uri, { reconnect: { min: 1, max: 5 } })
  const { add } = client(one, Calculator)
  const { value } = await add(new Operands({ left: 3, right: 4 }), { idempotent: true, signal: undefined })
  expect(value).toBe(7)
  expect(seen).toHaveLength(2)
  expect(new Set(seen).size).toBe(2)
  expect(seen).not.toContain(undefined)
  await one.close()
  await server.close()
})
