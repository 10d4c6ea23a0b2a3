import { createContext, runInContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import {
  ConnectionId,
  type ConnectionRequest,
  Listener,
  type ProtectionDomain,
  UsageError,
} from '../src/index.js'
import { deferred } from '../src/internal.js'

const realm = createContext({})
/** An object of another realm (vm, jest): an instance of no class here. */
const there = (code: string) => runInContext(code, realm)

/** A connector and the request that its `connect` makes, which is refused with the same bytes. */
async function refused(privateData: Uint8Array): Promise<{ asked: Uint8Array; answered: Uint8Array }> {
  const { promise, resolve } = deferred<ConnectionRequest>()
  using listener = await Listener.listen('iwarp://127.0.0.1:0', resolve)
  using id = await ConnectionId.resolve(listener.uri)
  const protectionDomain = id.context.allocateProtectionDomain()
  using sendQueue = id.context.createCompletionQueue({ entries: 16 })
  id.createQueuePair(protectionDomain, { sendQueue })
  const answer = id.connect({ privateData }).catch((failure) => failure)
  const request = await promise
  request.reject(privateData)
  return { asked: request.privateData, answered: (await answer).privateData }
}

async function domain<T>(use: (domain: ProtectionDomain) => T): Promise<T> {
  using listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
  using id = await ConnectionId.resolve(listener.uri)
  using made = id.context.allocateProtectionDomain()
  return use(made)
}

// V8 keeps up to 64 bytes of a typed array in the object itself, and what is longer elsewhere.
describe.each([8, 200])('%i bytes of private data', (length) => {
  const filled = (view: Uint8Array) => view.fill(7)
  it.each([
    ['an ArrayBuffer', () => filled(new Uint8Array(length))],
    ['a SharedArrayBuffer', () => filled(new Uint8Array(new SharedArrayBuffer(length)))],
    [
      'a resizable ArrayBuffer',
      () => filled(there(`new Uint8Array(new ArrayBuffer(${length}, { maxByteLength: 512 }))`)),
    ],
    ['another realm', () => filled(there(`new Uint8Array(${length})`))],
  ])('of %s arrive as they are', async (_, make) => {
    const { asked, answered } = await refused(make())
    expect(asked).toEqual(new Uint8Array(length).fill(7))
    expect(answered).toEqual(new Uint8Array(length).fill(7))
  })
})

it.each(['"text"', '[1, 2]', 'new DataView(new ArrayBuffer(8))', 'new Uint16Array(4)'])(
  '%s is no private data',
  async (code) => {
    using listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
    using id = await ConnectionId.resolve(listener.uri)
    await expect(id.connect({ privateData: there(code) })).rejects.toThrow(UsageError)
    await expect(id.connect({ privateData: there(code) })).rejects.toThrow('privateData must be a Uint8Array')
  },
)

describe('memory to register', () => {
  it.each(['new ArrayBuffer(4096)', 'new Float64Array(512)', 'new DataView(new ArrayBuffer(4096))'])(
    'of another realm is what it is: %s',
    async (code) => {
      const length = await domain((one) => {
        using region = one.registerMemoryRegion(there(code))
        return region.length
      })
      expect(length).toBe(4096)
    },
  )

  it.each([
    [0, 'new SharedArrayBuffer(0)'],
    [8, 'new Uint8Array(new SharedArrayBuffer(8))'],
    [4096, 'new SharedArrayBuffer(4096)'],
    [0, 'new ArrayBuffer(0, { maxByteLength: 8 })'],
    [8, 'new Uint8Array(new ArrayBuffer(8, { maxByteLength: 16 }))'],
    [4096, 'new ArrayBuffer(4096, { maxByteLength: 8192 })'],
  ])('is refused for what it is, whatever its length: %i bytes, %s', async (_, code) => {
    const register = () => domain((one) => one.registerMemoryRegion(there(code)))
    await expect(register()).rejects.toThrow(UsageError)
    await expect(register()).rejects.toThrow(/only an ArrayBuffer|resizable/)
  })
})
