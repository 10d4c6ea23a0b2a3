// Peers that break the rules of large messages: each loses its own connection with EPROTO, or gets nothing.
import { ConnectionId, type MemoryRegion, VerbsError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { afterEach, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type CloseReason, RingConnection, type RingMessage, RingServer } from '../../src/index.js'
import { SEND, TYPE } from '../../src/native.js'
import { connectLink } from '../../src/setup/establish.js'
import { settings } from '../../src/setup/options.js'
import { encodeOffer, encodeProgress, PROGRESS, WITHDRAWAL } from '../../src/transfer/format.js'
import { READ_FROM } from '../helpers/transfers.js'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

interface Frame {
  readonly type: number
  readonly correlation: number
  readonly immediate: number
  readonly bytes: Uint8Array
}

/** A server, a good connection to it, and a link whose upper half says what it likes. */
async function hostile(prepare: (victim: RingConnection) => void = (victim) => victim.messages.subscribe()) {
  const victims: RingConnection[] = []
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    ...READ_FROM,
    maxTransferMemory: LIMIT,
    maxMessageSize: LIMIT,
    onConnection(connection) {
      connection.handle((request) => request.copy())
      prepare(connection)
      victims.push(connection)
    },
  })
  ends.push(() => server.close({ drain: false }))
  const good = await RingConnection.connect(server.uri)
  const chosen = settings({})
  const link = await connectLink(await ConnectionId.resolve(server.uri, chosen.wait), 3, chosen)
  ends.push(() => link.destroy())
  const frames: Frame[] = []
  const reads: number[] = []
  link.start({
    message: (type, message: RingMessage) => {
      const { correlation, immediate } = message
      frames.push({ type, correlation, immediate, bytes: message.copy() })
      message.release()
    },
    writable: () => link.stagingWriter.flush(),
    read: (_, status) => reads.push(status),
    broken: () => {},
  })
  // So that drained() knows when there is room in the send queue.
  link.stagingWriter.signalAll()
  await expect.poll(() => victims.length).toBe(2)
  const victim = victims[1] as RingConnection

  function say(type: number, correlation: number, bytes: Uint8Array, immediate = 0): void {
    const at = link.stagingWriter.place(type, bytes.length)
    expect(at).toBeGreaterThan(0)
    link.stagingWriter.bytes.set(bytes, at)
    expect(link.stagingWriter.commit(type, bytes.length, correlation, immediate)).toBe(SEND.done)
    // Without credit it leaves with the writable event: the victim gives credit for notifications when it gets to it.
    expect(link.stagingWriter.flush()).not.toBe(SEND.failed)
  }
  /** It was thrown out, and the good connection was not. */
  async function thrownOut(saying: RegExp, code = /^EPROTO$/) {
    const reason: CloseReason = await victim.closed
    expect(reason).toBeInstanceOf(VerbsError)
    expect(reason?.code).toMatch(code)
    expect(reason?.message).toMatch(saying)
    expect(await good.request(new Uint8Array([5]))).toEqual(new Uint8Array([5]))
  }
  /** The next frame of that type from the victim. */
  async function heard(type: number): Promise<Frame> {
    await expect.poll(() => frames.some((frame) => frame.type === type)).toBe(true)
    const at = frames.findIndex((frame) => frame.type === type)
    return frames.splice(at, 1)[0] as Frame
  }
  return { link, say, thrownOut, heard, frames, reads, victim, good }
}

/** bytes that the victim takes in parts, and remembers at a time */
const LIMIT = 2 ** 22
/** messages in parts that a ring of 1 MiB holds */
const MANY = 12_000
const part = (of: number, type: number = TYPE.data) => [TYPE.part, of, new Uint8Array(100), type] as const

type Said = readonly [type: number, correlation: number, bytes: Uint8Array, immediate?: number]

it.each<[string, readonly Said[], RegExp]>([
  ['the end of a message alone', [[TYPE.last, 0, new Uint8Array(9)]], /without its beginning/],
  ['a message given up alone', [[TYPE.last, 0, new Uint8Array()]], /without its beginning/],
  ['a part without bytes', [[TYPE.part, 100, new Uint8Array(), TYPE.data]], /a part that is empty/],
  ['a part that is all', [part(100)], /has all the rest/],
  ['parts that are more than all', [part(250), part(250), part(250)], /has all the rest/],
  ['a part of a message of another length', [part(1000), part(1001)], /a part of another message/],
  [
    'a part of a message of another type',
    [part(1000), part(1000, TYPE.request)],
    /a part of another message/,
  ],
  ['parts of an error', [part(1000, TYPE.error)], /parts of a frame of type 5/],
  ['parts of parts', [part(1000, TYPE.part)], /parts of a frame of type 9/],
  [
    'an end too early',
    [part(1000), [TYPE.last, 0, new Uint8Array(100)]],
    /of 200 bytes, and 1000 were to come/,
  ],
  ['an end too late', [part(150), [TYPE.last, 0, new Uint8Array(51)]], /of 151 bytes, and 150 were to come/],
  ['more than is taken', [part(LIMIT + 1)], /a message of 4194305 bytes in parts, this end takes 4194304/],
  [
    'a message within a message',
    [part(1000), [TYPE.data, 0, new Uint8Array(1)]],
    /something within a message/,
  ],
  ['a close within a message', [part(1000), [TYPE.close, 0, new Uint8Array()]], /something within a message/],
  ['parts behind its close', [[TYPE.close, 0, new Uint8Array()], part(1000)], /after its close/],
  [
    'an answer in parts that nobody asked for',
    [part(150, TYPE.response), [TYPE.last, 3, new Uint8Array(50)]],
    /has not sent/,
  ],
])('%s', async (_, frames, saying) => {
  const { say, thrownOut, victim } = await hostile()
  for (const frame of frames) say(...frame)
  await thrownOut(saying)
  expect(victim.statistics()).toMatchObject({ transfersInFlight: 0, transferMemory: 0 })
})

it('requests in parts beyond what it may ask', async () => {
  const { link, say, thrownOut, victim } = await hostile()
  victim.handle(() => new Promise(() => {}))
  // 64 MiB, less what remembering them takes.
  for (let i = 0; i < 16; i++) {
    for (let at = 0; at < LIMIT; at += 2 ** 18) {
      await expect.poll(() => link.stagingWriter.place(TYPE.part, 2 ** 18)).toBeGreaterThan(0)
      if (at + 2 ** 18 === LIMIT) say(TYPE.last, i, new Uint8Array(2 ** 18))
      else say(TYPE.part, LIMIT, new Uint8Array(2 ** 18), TYPE.request)
    }
  }
  await thrownOut(/keeps sending requests/, /^ENOBUFS$/)
})

it('messages in parts that nobody takes stay in its ring, beyond the memory that there is for them', async () => {
  const { say, victim } = await hostile(() => {})
  for (let i = 0; i < 50; i++) {
    say(TYPE.part, 2 ** 20, new Uint8Array(1000), TYPE.data)
    say(TYPE.last, 0, new Uint8Array())
  }
  say(...part(LIMIT))
  await expect.poll(() => victim.statistics().transferMemory).toBe(LIMIT)
  say(TYPE.last, 0, new Uint8Array())
  await expect.poll(() => victim.statistics()).toMatchObject({ transferMemory: 0, messagesWaiting: 0 })
})

it('thousands of requests in parts that wait for memory all begin when there is some', async () => {
  const { link, say, victim } = await hostile(() => {})
  let begun = 0
  victim.handle(() => {
    begun++
    return new Uint8Array()
  })
  // A message that nobody takes has all the memory that there is.
  for (let at = 0; at < LIMIT; at += 2 ** 18) {
    await expect.poll(() => link.stagingWriter.place(TYPE.part, 2 ** 18)).toBeGreaterThan(0)
    if (at + 2 ** 18 === LIMIT) say(TYPE.last, 0, new Uint8Array(2 ** 18))
    else say(TYPE.part, LIMIT, new Uint8Array(2 ** 18), TYPE.data)
  }
  await expect.poll(() => victim.statistics()).toMatchObject({ transferMemory: LIMIT, messagesWaiting: 1 })
  const byte = new Uint8Array(1)
  for (let i = 0; i < MANY; i++) {
    say(TYPE.part, 2, byte, TYPE.request)
    say(TYPE.last, i, byte)
    // There are so many places in the send queue.
    if (i % 32 === 0)
      await eventually(() => victim.statistics().transfersInFlight === i + 1 && link.drained())
  }
  await eventually(() => victim.statistics().transfersInFlight === MANY)
  victim.messages.subscribe()
  await expect.poll(() => begun).toBe(MANY)
  expect(victim.statistics()).toMatchObject({ transfersInFlight: 0, transferMemory: 0 })
  expect(victim.isOpen).toBe(true)
})

const FIELDS = { address: 4096n, length: 100_000, remoteKey: 1, progressEvery: 0 }
const offer = (change: Partial<typeof FIELDS> = {}) => encodeOffer({ ...FIELDS, ...change })
/** An offer's payload with 64 bits of its own. */
function raw(at: number, value: bigint): Uint8Array {
  const bytes = offer()
  new DataView(bytes.buffer).setBigUint64(at, value, true)
  return bytes
}

it.each<[string, Uint8Array, RegExp]>([
  ['no bytes', new Uint8Array(), /an offer of 0 bytes/],
  ['a byte too few', offer().subarray(1), /an offer of 23 bytes/],
  ['a byte too many', new Uint8Array(25), /an offer of 25 bytes/],
  ['nothing, at an address', raw(8, 0n), /an offer of nothing/],
  ['more than a number holds', raw(8, 1n << 53n), /an offer of 9007199254740992 bytes/],
  ['memory that wraps', raw(0, 0xffff_ffff_ffff_ff00n), /beyond the last address/],
])('an offer of %s', async (_, bytes, saying) => {
  const { say, thrownOut } = await hostile()
  say(TYPE.offer, 1, bytes)
  await thrownOut(saying)
})

it('an offer with the number of an unsettled one', async () => {
  const { say, thrownOut } = await hostile((victim) => victim.offers.subscribe())
  say(TYPE.offer, 7, offer())
  say(TYPE.offer, 8, offer())
  say(TYPE.offer, 7, offer())
  await thrownOut(/the number of an unsettled one/)
})

it('more than 64 offers at a time', async () => {
  const { say, thrownOut } = await hostile((victim) => victim.offers.subscribe())
  for (let i = 0; i < 65; i++) say(TYPE.offer, i, offer())
  await thrownOut(/more than 64 offers/)
})

it('offers without end from a peer that takes no answers', async () => {
  const { link, say, thrownOut, victim } = await hostile((one) =>
    one.offers.subscribe((offer) => offer.reject()),
  )
  // Its ring is full, and it gives none of it back.
  link.start({ message: () => {}, writable: () => {}, read: () => {}, broken: () => {} })
  const big = new Uint8Array(victim.maxMessageLength)
  while (victim.send(big)) victim.flush()
  while (victim.send(new Uint8Array())) victim.flush()
  for (let i = 0; i < 80; i++) say(TYPE.offer, i, offer())
  await thrownOut(/more than 64 offers/)
})

it('an offer behind its close', async () => {
  const { say, thrownOut } = await hostile()
  say(TYPE.close, 0, new Uint8Array())
  say(TYPE.offer, 1, offer())
  await thrownOut(/after its close/)
})

it('an offer of memory that is not there breaks its own connection', async () => {
  const { say, thrownOut, victim } = await hostile()
  const failed = deferred<unknown>()
  victim.offers.subscribe((one) => one.accept().catch(failed.resolve))
  say(TYPE.offer, 1, offer({ remoteKey: 0x7654_3210 }))
  expect(await failed.promise).toMatchObject({ code: expect.stringMatching(/^(ECONNRESET|EPROTO)$/) })
  await thrownOut(/./, /^(ECONNRESET|EPROTO)$/)
})

it('an offer that nobody wants so large is refused, without a byte read', async () => {
  const { say, heard, victim } = await hostile()
  say(TYPE.offer, 1, offer({ length: 2 ** 50 }))
  const { correlation, bytes } = await heard(TYPE.settled)
  expect(correlation).toBe(1)
  expect(Buffer.from(bytes).toString()).toMatch(/^EMSGSIZE /)
  expect(victim.isOpen).toBe(true)
})

it('the withdrawal of what was never offered means nothing', async () => {
  const { say, heard, victim } = await hostile()
  say(TYPE.offer, 99, WITHDRAWAL)
  say(TYPE.request, 5, new Uint8Array([1]))
  expect((await heard(TYPE.response)).correlation).toBe(5)
  expect(victim.isOpen).toBe(true)
})

it.each<[string, Uint8Array, number, RegExp]>([
  ['the end of what was never offered', new Uint8Array(), 0, /never offered/],
  ['a progress of what was never offered', encodeProgress(1), PROGRESS, /never offered/],
])('%s', async (_, bytes, immediate, saying) => {
  const { say, thrownOut } = await hostile()
  say(TYPE.settled, 1, bytes, immediate)
  await thrownOut(saying)
})

it.each<[string, Uint8Array, number]>([
  ['a progress beyond the end', encodeProgress(300_001), PROGRESS],
  ['a malformed progress', new Uint8Array(7), PROGRESS],
  ['an end of unknown kind', new Uint8Array(), 2],
])('%s, of what was offered', async (_, bytes, immediate) => {
  const { say, thrownOut, heard, victim } = await hostile()
  const sent = victim.transmit(new Uint8Array(300_000), { onProgress: () => {} })
  const refused = expect(sent).rejects.toMatchObject({ code: 'EPROTO' })
  const { correlation } = await heard(TYPE.offer)
  say(TYPE.settled, correlation, bytes, immediate)
  await thrownOut(/impossible progress|unknown kind/)
  await refused
})

it('a progress that goes back, and a second end', async () => {
  const { say, thrownOut, heard, victim } = await hostile()
  const sent = victim.transmit(new Uint8Array(300_000))
  const { correlation } = await heard(TYPE.offer)
  say(TYPE.settled, correlation, encodeProgress(10), PROGRESS)
  say(TYPE.settled, correlation, new Uint8Array())
  await sent
  say(TYPE.settled, correlation, new Uint8Array())
  await thrownOut(/for the second time/)
})

it('the end of an offer that has not left yet', async () => {
  const { link, say, thrownOut, victim } = await hostile()
  // Its ring is full, and it gives none of it back: the offer waits.
  link.start({ message: () => {}, writable: () => {}, read: () => {}, broken: () => {} })
  const big = new Uint8Array(victim.maxMessageLength)
  while (victim.send(big)) victim.flush()
  while (victim.send(new Uint8Array())) victim.flush()
  const sent = victim.transmit(new Uint8Array(300_000))
  const refused = expect(sent).rejects.toMatchObject({ code: 'EPROTO' })
  // The first number that is given out.
  say(TYPE.settled, 1, new Uint8Array())
  await thrownOut(/never offered/)
  await refused
})

it('memory stays registered after an abort until the peer has settled, and no longer', async () => {
  const { link, say, heard, reads, victim } = await hostile()
  const abort = new AbortController()
  const sent = victim.transmit(new Uint8Array(300_000).fill(9), { signal: abort.signal })
  const { correlation, bytes } = await heard(TYPE.offer)
  const fields = new DataView(bytes.buffer)
  const [address, key] = [fields.getBigUint64(0, true), fields.getUint32(16, true)]
  abort.abort(new Error('enough'))
  await expect(sent).rejects.toThrow('enough')
  expect((await heard(TYPE.offer)).bytes).toEqual(WITHDRAWAL)
  const into: MemoryRegion = await link.protectionDomain.allocateMemoryRegion(300_000)
  expect(link.read(into.handle, 0, address, key, 300_000, 1)).toBe(SEND.done)
  await expect.poll(() => reads).toEqual([0])
  expect(new Uint8Array(into.buffer)[299_999]).toBe(9)
  say(TYPE.settled, correlation, new Uint8Array())
  say(TYPE.request, 5, new Uint8Array())
  await heard(TYPE.response)
  expect(link.read(into.handle, 0, address, key, 300_000, 2)).toBe(SEND.done)
  await expect.poll(() => reads.length).toBe(2)
  expect(reads[1]).not.toBe(0)
})
