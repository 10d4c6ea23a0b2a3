// What is too long, too large or no such number is refused with the limit, whose it is, and which option raises it.
import { expect, it } from 'vitest'
import { pairOfTest } from '../helpers/pair.js'
import { listenUri } from '../helpers/uris.js'

const pair = (...options: unknown[]) =>
  pairOfTest(...([listenUri('shm'), ...options] as Parameters<typeof pairOfTest>))

it('a request and an answer above half a ring, where nothing is taken in parts', async () => {
  const whole = { maxTransferMemory: 0 }
  const { a, b } = await pair({ capacity: 4096, ...whole }, { capacity: 8192, ...whole })
  b.handle(({ length }) => new Uint8Array(length))
  const long = a.request(new Uint8Array(2033))
  await expect(long).rejects.toMatchObject({ name: 'VerbsError', code: 'EMSGSIZE' })
  await expect(long).rejects.toThrow(/2033 bytes are more than 2032, half the receiver's ring/)
  await expect(long).rejects.toThrow(/option capacity, now 4096, or use transmit/)
  b.handle(() => new Uint8Array(5000))
  const answer = a.request(new Uint8Array(1))
  await expect(answer).rejects.toMatchObject({ name: 'RemoteError', code: 'EMSGSIZE' })
  await expect(answer).rejects.toThrow(/5000 bytes are more than 4080.*option capacity, now 8192/)
  expect(() => a.send(new Uint8Array(2033))).toThrow(/option capacity, now 4096/)
})

it('a request and an answer above what is taken in parts', async () => {
  const { a, b } = await pair({ maxMessageSize: 2_100_000 }, { maxMessageSize: 2_200_000 })
  b.handle(({ length }) => new Uint8Array(length + 65_537))
  const long = a.request(new Uint8Array(2 ** 21 + 1))
  await expect(long).rejects.toMatchObject({ name: 'VerbsError', code: 'EMSGSIZE' })
  await expect(long).rejects.toThrow(/2097153 bytes are more than 2097152, .*raise its option maxMessageSize/)
  const answer = a.request(new Uint8Array(2 ** 21))
  await expect(answer).rejects.toMatchObject({ name: 'RemoteError', code: 'EMSGSIZE' })
  await expect(answer).rejects.toThrow(
    /2162689 bytes are more than 2162688, .*raise its option maxMessageSize/,
  )
})

it('a capacity above the maxPeerCapacity of the other end, at both', async () => {
  await expect(pair({ maxPeerCapacity: 65_536 }, { capacity: 131_072 })).rejects.toMatchObject({
    code: 'ECONNREFUSED',
    message: /EMSGSIZE: capacity > maxPeerCapacity 65536/,
  })
  const failures: unknown[] = []
  const server = { maxPeerCapacity: 65_536, onError: (failure: unknown) => failures.push(failure) }
  await expect(pair(server, { capacity: 131_072 })).rejects.toThrow()
  expect(failures).toEqual([expect.objectContaining({ code: 'EMSGSIZE' })])
  expect(String(failures[0])).toMatch(
    /2\^17 bytes \(its option capacity\).*65536 \(its option maxPeerCapacity\)/,
  )
  await expect(pair({ capacity: 131_072 }, { maxPeerCapacity: 65_536 })).rejects.toMatchObject({
    code: 'EMSGSIZE',
    message: /2\^17 bytes .*this end takes 65536/,
  })
})

it.each(['text', [1, 2], new ArrayBuffer(4), new Uint16Array(3), new DataView(new ArrayBuffer(4))])(
  'application data that are no bytes: %s',
  async (applicationData) => {
    const refused = { name: 'UsageError', message: /applicationData must be a Uint8Array/ }
    await expect(pair({}, { applicationData })).rejects.toMatchObject(refused)
    await expect(pair({ applicationData })).rejects.toMatchObject(refused)
  },
)

it.each([-1, 1.5, 2 ** 32, Number.NaN, '1' as unknown as number])(
  'an immediate of %s, whatever it goes with',
  async (immediate) => {
    const { a, b } = await pair()
    const refused = { name: 'UsageError', message: /immediate must be a whole number/ }
    const heard: number[] = []
    b.messages.subscribe((message) => heard.push(message.immediate))
    b.handle(({ data }) => data)
    expect(() => a.send(new Uint8Array(1), immediate)).toThrow(
      expect.objectContaining({ name: 'UsageError' }),
    )
    await expect(a.request(new Uint8Array(1), { immediate })).rejects.toMatchObject(refused)
    await expect(a.transmit(new Uint8Array(1), { immediate })).rejects.toMatchObject(refused)
    expect(a.claim(1)).toBeDefined()
    expect(() => a.commit(immediate)).toThrow(expect.objectContaining({ name: 'UsageError' }))
    // What is claimed still is.
    a.commit(0xffff_ffff)
    await a.request(new Uint8Array(1))
    expect(heard).toEqual([0xffff_ffff])
  },
)
