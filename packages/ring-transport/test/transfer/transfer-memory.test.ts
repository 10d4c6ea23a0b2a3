// The memory of large messages: bounded, and given back on every way in which one ends.
import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import {
  type ConnectOptions,
  RemoteError,
  type RingMessage,
  type RingServerOptions,
} from '../../src/index.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'
import { pattern } from '../helpers/processes.js'
import { LARGE, MIB, next, READ_FROM } from '../helpers/transfers.js'

describe.each(PROVIDERS)('over %s', (_, uri) => {
  const connected = (server?: Partial<RingServerOptions>, client?: ConnectOptions) =>
    pairOfTest(uri(), { ...READ_FROM, ...server }, { ...READ_FROM, ...client })

  it('is bounded: what is offered waits until messages are released', async () => {
    const { a, b } = await connected({ maxTransferMemory: 4 * MIB })
    const held: RingMessage[] = []
    b.views.subscribe((message) => held.push(message.retain()))
    const sent: Promise<void>[] = []
    for (let i = 0; i < 10; i++) sent.push(a.transmit(pattern(MIB, i), { immediate: i }))
    await Promise.all(sent.slice(0, 4))
    await expect.poll(() => held.length).toBe(4)
    // A round trip later there is still none more.
    a.handle(() => new Uint8Array())
    await b.request(new Uint8Array())
    expect(held.length).toBe(4)
    for (let i = 0; i < 10; i++) {
      await expect.poll(() => held.length).toBeGreaterThan(i)
      const message = held[i] as RingMessage
      expect(message.immediate).toBe(i)
      expect(Buffer.compare(message.data, pattern(MIB, i))).toBe(0)
      message.release()
    }
    await Promise.all(sent)
  })
  it('of a message outlives the connection while it is retained', async () => {
    const { a, b } = await connected()
    const got = next<RingMessage>({ subscribe: (to) => b.views.subscribe((one) => to(one.retain())) })
    await a.transmit(pattern(LARGE, 4))
    const message = await got
    await a.close()
    await b.closed
    expect(Buffer.compare(message.data, pattern(LARGE, 4))).toBe(0)
    message.release()
    expect(() => message.data).toThrow(UsageError)
  })
  it('is not there for more than maxMessageSize', async () => {
    const { a, b } = await connected({ maxTransferMemory: MIB, maxMessageSize: LARGE })
    const lengths: number[] = []
    b.messages.subscribe(({ length }) => lengths.push(length))
    const refused = a.transmit(new Uint8Array(LARGE + 1))
    await expect(refused).rejects.toBeInstanceOf(RemoteError)
    await expect(refused).rejects.toMatchObject({ code: 'EMSGSIZE' })
    await a.transmit(new Uint8Array(LARGE))
    await expect.poll(() => lengths).toEqual([LARGE])
  })
  it('is not there for what is refused, nor a place among the messages', async () => {
    const { a, b } = await connected({ maxMessageSize: LARGE })
    for (let i = 0; i < 3; i++)
      await expect(a.transmit(new Uint8Array(LARGE + 1))).rejects.toMatchObject({ code: 'EMSGSIZE' })
    expect(b.statistics()).toMatchObject({ messagesWaiting: 0, transfersInFlight: 0, transferMemory: 0 })
  })
  it('nor for what is withdrawn', async () => {
    const { a, b } = await connected({ maxTransferMemory: 2 * MIB })
    // It is not taken, so there is no memory for the second one.
    await a.transmit(new Uint8Array(MIB + 1))
    const abort = new AbortController()
    const sent = a.transmit(new Uint8Array(MIB + 1), { signal: abort.signal })
    await expect.poll(() => b.statistics().messagesWaiting).toBe(2)
    abort.abort(new Error('changed my mind'))
    await expect(sent).rejects.toThrow('changed my mind')
    await expect.poll(() => b.statistics()).toMatchObject({ messagesWaiting: 1, transfersInFlight: 0 })
  })
  it('waits in its place while nobody takes messages, and goes with close', async () => {
    const { a, b } = await connected()
    await a.transmit(new Uint8Array(LARGE))
    await a.transmit(new Uint8Array(LARGE))
    await b.close()
    expect(await a.closed).toBeUndefined()
  })
})
