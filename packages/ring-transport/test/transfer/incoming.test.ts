// Offers on a connection that ends or fails at the worst moment, which no real one can be made to do at will.
import type { ProtectionDomain } from '@rdmakit/verbs'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { SEND } from '../../src/native.js'
import type { RingMessage } from '../../src/receiving/message.js'
import { Place } from '../../src/receiving/place.js'
import { encodeOffer } from '../../src/transfer/format.js'
import type { TransferHost } from '../../src/transfer/host.js'
import { Incoming } from '../../src/transfer/incoming.js'
import { deviceOf } from '../helpers/processes.js'

const context = deviceOf('iwarp')
let protectionDomain: ProtectionDomain
beforeAll(() => {
  protectionDomain = context.allocateProtectionDomain()
})
afterAll(() => context.close())

const MIB = 2 ** 20

/** Offers to a connection that is only what the test makes of it; its READs complete when the test says so. */
function incoming(change: Partial<TransferHost> = {}) {
  const tags: number[] = []
  /** the tag of the READ of so many bytes: memory for two offers may come in either order */
  const tagOf = new Map<number, number>()
  const places: Place[] = []
  const host: TransferHost = {
    object: 'connection',
    protectionDomain,
    debug: false,
    post: (_frame, _bytes, _wanted, onSent) => {
      onSent?.()
      return undefined
    },
    borrow: () => undefined,
    deliver: () => {},
    send: () => true,
    read: (_region, _offset, _address, _key, length, tag) => {
      tags.push(tag)
      tagOf.set(length, tag)
      return SEND.done
    },
    hold: () => {
      const place = new Place(() => {})
      places.push(place)
      return place
    },
    fail: (reason) => {
      throw reason
    },
    keep: () => () => {},
    ...change,
  }
  const made = new Incoming(host, 16 * MIB, 16 * MIB)
  /** An offer that wants to hear of each READ. */
  const offer = (correlation: number, length: number) => {
    const bytes = encodeOffer({ address: 4096n, length, remoteKey: 1, progressEvery: 1 })
    expect(made.offered({ correlation, immediate: 0, copy: () => bytes } as RingMessage)).toBeUndefined()
  }
  return { incoming: made, offer, tags, tagOf, places }
}

it('an end has settled the places when it says so: what had been read is there, the rest is not', async () => {
  const { incoming: offers, offer, tagOf, places } = incoming()
  offer(1, 100)
  offer(2, 200)
  await expect.poll(() => tagOf.size).toBe(2)
  offers.reads.onRead(tagOf.get(100) as number, 0)
  const ended = offers.end(new Error('it broke'))
  expect(places[0]?.message).toBeUndefined()
  await ended
  expect(places[0]?.message?.length).toBe(100)
  expect(places[1]?.message).toBeNull()
  expect(offers.count).toBe(0)
  places[0]?.message?.release()
  expect(offers.memory.used).toBe(0)
})

it('an impossible progress told does not lose what was read', async () => {
  let tried = 0
  const {
    incoming: offers,
    offer,
    tags,
    places,
  } = incoming({
    send: () => {
      tried++
      throw new Error('the queue pair accepts no more work requests')
    },
  })
  offer(1, 2 * MIB)
  await expect.poll(() => tags.length).toBe(2)
  for (const tag of tags) offers.reads.onRead(tag, 0)
  await expect.poll(() => places[0]?.message?.length).toBe(2 * MIB)
  expect(tried).toBe(1)
  places[0]?.message?.release()
  await offers.end(new Error('enough'))
})

it('the number of an offer is free as soon as its end is laid out, or cannot be', async () => {
  const waiting: { sent: () => void; reject: (reason: unknown) => void }[] = []
  const { incoming: offers, offer } = incoming({
    post: (_frame, _bytes, _wanted, onSent = () => {}) =>
      new Promise((_, reject) => waiting.push({ sent: onSent, reject })),
  })
  offers.offers.subscribe((one) => one.reject())
  offer(1, 100)
  offer(2, 100)
  expect(offers.count).toBe(2)
  waiting[0]?.sent()
  // In the same turn, before any promise is looked at.
  offer(1, 100)
  expect(offers.count).toBe(2)
  waiting[1]?.reject(new Error('the queue pair accepts no more work requests'))
  await expect.poll(() => offers.count).toBe(1)
  await offers.end(new Error('enough'))
})

it('an offer that is too long takes no place among the messages', () => {
  const { incoming: offers, offer, tags, places } = incoming()
  offer(1, 16 * MIB + 1)
  expect([places.length, tags.length, offers.count]).toEqual([0, 0, 0])
})
