import { describe, expect, it } from 'vitest'
import { type PendingRequest, PendingRequests } from '../../src/requests/pending-requests.js'

const ANSWER = new Uint8Array([1])
const EMPTY = new Uint8Array()
const LIMIT = 2 ** 20
const send = (request: PendingRequest) => {
  request.sent = true
}

/** A request that goes to the peer as soon as that has memory for it. It may be left for good. */
function ask(requests: PendingRequests, timeout = 60_000, bytes = EMPTY): PendingRequest {
  const request = requests.ask(bytes, timeout)
  request.response.catch(() => {})
  return request
}

/** Its response comes. */
function answer(requests: PendingRequests, correlation: number): boolean {
  const request = requests.take(correlation)
  if (typeof request === 'object') request.resolve(ANSWER)
  return request !== undefined
}

it('numbers begin at 1 and wrap behind 2^32 − 1', () => {
  const requests = new PendingRequests('test', LIMIT, send)
  requests.last = 0xffff_fffd
  const numbers = [1, 2, 3].map(() => ask(requests).correlation)
  expect(numbers).toEqual([0xffff_fffe, 0xffff_ffff, 1])
  expect(ask(new PendingRequests('test', LIMIT, send)).correlation).toBe(1)
})

it('numbers that are pending, or may still be answered, are skipped when they come round', async () => {
  const requests = new PendingRequests('test', LIMIT, send)
  const numbers = [1, 2, 3].map(() => ask(requests))
  const [, given, answered] = numbers as [PendingRequest, PendingRequest, PendingRequest]
  requests.giveUp(given, new Error('aborted'))
  await expect(given.response).rejects.toThrow('aborted')
  answer(requests, 3)
  expect(await answered.response).toBe(ANSWER)
  requests.last = 0xffff_ffff
  expect(ask(requests).correlation).toBe(3)
  expect(ask(requests).correlation).toBe(4)
})

it('an answer is taken once, also when nobody waits for it any more', async () => {
  const requests = new PendingRequests('test', LIMIT, (request) => {
    request.sent = request.correlation !== 3
  })
  const answered = ask(requests)
  expect(answer(requests, answered.correlation)).toBe(true)
  expect(answer(requests, answered.correlation)).toBe(false)
  const late = ask(requests, 1)
  await expect(late.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(requests.take(late.correlation)).toBe('given up')
  expect(answer(requests, late.correlation)).toBe(false)
  const unsent = ask(requests, 1)
  expect(answer(requests, unsent.correlation)).toBe(false)
  await expect(unsent.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(answer(requests, unsent.correlation)).toBe(false)
  expect(answer(requests, 77)).toBe(false)
})

it.each([
  ['an array', new Uint8Array([1])],
  ['a Buffer, whose slices are views', Buffer.from([1])],
])('a request that waits for the memory of the peer is what it was when it was made: %s', (_, bytes) => {
  const sent: number[] = []
  const requests = new PendingRequests('test', 1, (request, [first = 0]) => {
    request.sent = true
    sent.push(first)
  })
  const { correlation } = ask(requests)
  ask(requests, 60_000, bytes)
  bytes[0] = 2
  expect(sent).toEqual([0])
  answer(requests, correlation)
  expect(sent).toEqual([0, 1])
})

it('a request of detached bytes that would have to wait is none', () => {
  const requests = new PendingRequests('test', 1, send)
  ask(requests)
  const bytes = new Uint8Array([1])
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] })
  expect(() => requests.ask(bytes)).toThrow(TypeError)
  expect(requests.count).toBe(1)
})

it('thousands are found each by its number, in whatever order they are answered, as others come', async () => {
  const requests = new PendingRequests('test', 2 ** 30, send)
  requests.last = 0xffff_ffff - 3_000
  const all = Array.from({ length: 10_000 }, () => ask(requests))
  expect(new Set(all.map(({ correlation }) => correlation)).size).toBe(10_000)
  // One in seven stays for long, and numbers go round it.
  const [long, short] = [all.filter((_, at) => at % 7 === 0), all.filter((_, at) => at % 7 !== 0)]
  for (const { correlation } of short.reverse()) expect(answer(requests, correlation)).toBe(true)
  expect(requests.count).toBe(long.length)
  const pending = new Set(long.map(({ correlation }) => correlation))
  for (let i = 0; i < 100_000; i++) {
    const { correlation } = ask(requests)
    if (pending.has(correlation)) throw new Error(`number ${correlation} is given out twice`)
    if (!answer(requests, correlation)) throw new Error(`number ${correlation} is not found`)
  }
  for (const { correlation } of long) expect(answer(requests, correlation)).toBe(true)
  expect(requests.count).toBe(0)
  await requests.idle()
})

describe('what the peer has memory for', () => {
  const COST = 1536

  it('goes at once, the rest in order when answers come, and not what was given up meanwhile', async () => {
    const sent: number[] = []
    const requests = new PendingRequests('test', 2 * COST, (request) => {
      request.sent = true
      sent.push(request.correlation)
    })
    const added = [1, 2, 3, 4, 5].map(() => ask(requests))
    expect(sent).toEqual([1, 2])
    requests.giveUp(added[2] as PendingRequest, new Error('given up'))
    answer(requests, 2)
    expect(sent).toEqual([1, 2, 4])
    // It is no longer awaited, and the peer still has it.
    requests.giveUp(added[0] as PendingRequest, new Error('given up'))
    expect(sent).toEqual([1, 2, 4])
    expect(requests.take(1)).toBe('given up')
    expect(sent).toEqual([1, 2, 4, 5])
  })

  it('what waits is a copy', () => {
    const sent: Uint8Array[] = []
    const requests = new PendingRequests('test', COST, (request, bytes) => {
      request.sent = true
      sent.push(bytes)
    })
    const bytes = new Uint8Array([7])
    for (let i = 0; i < 2; i++) ask(requests, 60_000, bytes)
    bytes[0] = 8
    requests.take(1)
    expect(sent.map(([byte]) => byte)).toEqual([8, 7])
  })

  it('that time is up for it is said with why', async () => {
    const requests = new PendingRequests('test', COST, send)
    ask(requests)
    const late = ask(requests, 1)
    await expect(late.response).rejects.toMatchObject({
      code: 'ETIMEDOUT',
      message: /1536 bytes of unanswered requests/,
    })
  })
})
