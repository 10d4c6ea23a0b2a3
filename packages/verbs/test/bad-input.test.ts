import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  ConnectionId,
  type Context,
  Listener,
  openDevice,
  type ProtectionDomain,
  UsageError,
} from '../src/index.js'

describe('bad input is refused before a device sees it', () => {
  let context: Context
  let protectionDomain: ProtectionDomain
  beforeEach(() => {
    context = openDevice('iwarp0', 'iwarp')
    protectionDomain = context.allocateProtectionDomain()
  })
  afterEach(() => context.close())

  it.each([
    ['a port number', { gid: new Uint8Array(16), portNumber: 257 }],
    ['a LID', { lid: 65_536 }],
    ['the index of a GID', { gid: new Uint8Array(16), sourceGidIndex: 256 }],
    ['a hop limit', { gid: new Uint8Array(16), hopLimit: -1 }],
    ['16 bytes', { gid: new Uint8Array(4) }],
    ['needs a GID or a LID', {}],
  ])('an address vector with a wrong %s', (message, vector) => {
    expect(() => protectionDomain.createAddressHandle(vector)).toThrow(UsageError)
    expect(() => protectionDomain.createAddressHandle(vector)).toThrow(message)
  })

  it.each([2 ** 32 + 1, 0, 1.5, -1])('a completion queue of %d entries', (entries) => {
    expect(() => context.createCompletionQueue({ entries })).toThrow(UsageError)
  })

  it.each([
    ['maxSend', { maxSend: 2 ** 32 + 8 }],
    ['maxReceive', { maxReceive: -1 }],
    ['maxInlineData', { maxInlineData: 0.5 }],
  ])('a queue pair with a wrong %s', (name, wrong) => {
    const sendQueue = context.createCompletionQueue({ entries: 16 })
    expect(() => protectionDomain.createQueuePair({ sendQueue, ...wrong })).toThrow(name)
  })

  it.each([
    ['timeout', { timeout: 32 }],
    ['retryCount', { retryCount: 8 }],
    ['responderResources', { responderResources: 256 }],
    ['destinationQueuePairNumber', { destinationQueuePairNumber: 2 ** 24 }],
  ])('an attribute %s that does not fit', (name, wrong) => {
    const sendQueue = context.createCompletionQueue({ entries: 16 })
    const queuePair = protectionDomain.createQueuePair({ sendQueue })
    expect(() => queuePair.modify(wrong)).toThrow(name)
  })

  it.each(['responderResources', 'initiatorDepth'])(
    'a depth of READs that does not fit: %s',
    async (name) => {
      const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
      const id = await ConnectionId.resolve(listener.uri)
      const sendQueue = id.context.createCompletionQueue({ entries: 16 })
      id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue })
      for (const depth of [257, -1, 0.5, Number.NaN])
        await expect(id.connect({ [name]: depth })).rejects.toThrow(name)
      id.close()
      listener.close()
    },
  )

  it.each([Number.NaN, 0, -1, 2 ** 31, '5' as unknown as number])('a timeout of %s', async (timeout) => {
    const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
    const id = await ConnectionId.resolve(listener.uri)
    const sendQueue = id.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue })
    const refused = { name: 'UsageError', message: expect.stringContaining(`not ${timeout}`) }
    await expect(id.connect({ timeout })).rejects.toMatchObject(refused)
    await expect(id.accept({ timeout })).rejects.toMatchObject(refused)
    await expect(ConnectionId.resolve(listener.uri, { timeout })).rejects.toMatchObject(refused)
    await expect(Listener.listen('iwarp://127.0.0.1:0', () => {}, { timeout })).rejects.toMatchObject(refused)
    id.close()
    listener.close()
  })

  it('for ever is a timeout too', async () => {
    const timeout = Number.POSITIVE_INFINITY
    const listener = await Listener.listen(
      'iwarp://localhost:0',
      async ({ id }) => {
        id.createQueuePair(protectionDomain, { sendQueue: context.createCompletionQueue({ entries: 16 }) })
        // Longer than the millisecond for which Node takes a time that is too long for it.
        await new Promise((resolve) => setTimeout(resolve, 20))
        await id.accept({ timeout })
      },
      { timeout },
    )
    const id = await ConnectionId.resolve(listener.uri, { timeout })
    const sendQueue = id.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue })
    expect(await id.connect({ timeout })).toHaveLength(0)
    id.close()
    listener.close()
  })

  it.each([
    ['a SharedArrayBuffer', new SharedArrayBuffer(4096)],
    ['a number', 4096],
    ['nothing', undefined],
    ['an array', [1, 2, 3]],
  ])('%s as memory', (_name, memory) => {
    expect(() => protectionDomain.registerMemoryRegion(memory as unknown as ArrayBuffer)).toThrow(
      /only an ArrayBuffer/,
    )
    return expect(
      protectionDomain.registerMemoryRegionAsync(memory as unknown as ArrayBuffer),
    ).rejects.toThrow(/only an ArrayBuffer/)
  })

  it('no bytes as memory', () => {
    expect(() => protectionDomain.registerMemoryRegion(new ArrayBuffer(0))).toThrow(/no bytes/)
  })

  it('numbers in a slot that do not fit', async () => {
    const region = await protectionDomain.allocateMemoryRegion(4096)
    const sendQueue = context.createCompletionQueue({ entries: 16 })
    const queuePair = protectionDomain.createQueuePair({ sendQueue })
    const slots = queuePair.createSendSlots(4, [region])
    expect(() => slots.set(0, { opcode: 'send', region, length: 2 ** 32 + 5 })).toThrow(/a length/)
    expect(() => slots.set(0, { opcode: 'send', region, offset: -1 })).toThrow(/an offset/)
    expect(() => slots.set(0, { opcode: 'send-with-immediate', immediate: 2 ** 32 })).toThrow(/immediate/)
    expect(() => slots.set(0, { opcode: 'bind-memory-window' as 'send' })).toThrow(/unknown opcode/)
    expect(() => slots.set(0, { opcode: 'fetch-and-add', add: -1n })).toThrow(/64 bits/)
    expect(() => slots.post(0.5, 1)).toThrow(/whole number/)
    expect(() => (slots.post as (first: number) => number)(3)).toThrow(/whole number/)
    expect(() => queuePair.createSendSlots(0, [region])).toThrow(/number of slots/)
    expect(() => sendQueue.createCompletionArray(257)).toThrow(/1 to 256/)
  })

  it.each([-1n, 2n ** 64n])('%s as a work request id', (workRequestId) => {
    const completionQueue = context.createCompletionQueue({ entries: 16 })
    const queuePair = protectionDomain.createQueuePair({ sendQueue: completionQueue })
    expect(() => queuePair.postSend({ opcode: 'send', workRequestId })).toThrow(/work request id has 64 bits/)
    expect(() => queuePair.postReceive({ workRequestId })).toThrow(/work request id has 64 bits/)
    expect(() => queuePair.postReceive({}, { workRequestId })).toThrow(/work request id has 64 bits/)
  })

  it('a protection domain that is closed while memory is being mapped', async () => {
    const pending = protectionDomain.allocateMemoryRegion(2 ** 20)
    protectionDomain.close()
    await expect(pending).rejects.toThrow(/closed meanwhile/)
  })

  it('asynchronous events complete with their context', async () => {
    const told: string[] = []
    const completed = new Promise<void>((resolve) => {
      const complete = () => {
        told.push('complete')
        resolve()
      }
      context.asyncEvents.subscribe({ next: ({ type }) => told.push(type), complete })
    })
    expect(told).toEqual([])
    context.close()
    await completed
    expect(told).toEqual(['complete'])
  })
})
