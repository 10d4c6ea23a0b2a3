import { describe, expect, it } from 'vitest'
import { PendingRequests } from '../src/requests.js'

type Added = ReturnType<PendingRequests['add']>
const ANSWER = new Uint8Array([1])
const EMPTY = new Uint8Array()
const LIMIT = 2 ** 20

/** A request that has gone to the peer. */
function ask(requests: PendingRequests, timeout = 60_000): Added {
  const added = requests.add(timeout)
  requests.ask(added.correlation, EMPTY, () => requests.sent(added.correlation))
  return added
}

it('numbers begin at 1 and wrap behind 2^32 − 1', () => {
  const requests = new PendingRequests('test', LIMIT)
  requests.last = 0xffff_fffd
  const numbers = [1, 2, 3].map(() => requests.add(60_000).correlation)
  expect(numbers).toEqual([0xffff_fffe, 0xffff_ffff, 1])
  expect(new PendingRequests('test', LIMIT).add(60_000).correlation).toBe(1)
})

it('numbers that are pending, or may still be answered, are skipped when they come round', async () => {
  const requests = new PendingRequests('test', LIMIT)
  const numbers = [1, 2, 3].map(() => ask(requests))
  const [, given, answered] = numbers as [Added, Added, Added]
  requests.reject(2, new Error('aborted'))
  await expect(given.response).rejects.toThrow('aborted')
  requests.answer(3, ({ resolve }) => resolve(ANSWER))
  expect(await answered.response).toBe(ANSWER)
  requests.last = 0xffff_ffff
  expect(requests.add(60_000).correlation).toBe(3)
  expect(requests.add(60_000).correlation).toBe(4)
})

it('an answer is taken once, also when nobody waits for it any more', async () => {
  const requests = new PendingRequests('test', LIMIT)
  const settle = ({ resolve }: { resolve: (value: Uint8Array) => void }) => resolve(ANSWER)
  const answered = ask(requests)
  expect(requests.answer(answered.correlation, settle)).toBe(true)
  expect(requests.answer(answered.correlation, settle)).toBe(false)
  const late = ask(requests, 1)
  await expect(late.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(requests.answer(late.correlation, settle)).toBe(true)
  expect(requests.answer(late.correlation, settle)).toBe(false)
  const unsent = requests.add(1)
  requests.ask(unsent.correlation, EMPTY, () => {})
  expect(requests.answer(unsent.correlation, settle)).toBe(false)
  await expect(unsent.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(requests.answer(unsent.correlation, settle)).toBe(false)
  expect(requests.answer(77, settle)).toBe(false)
})

describe('what the peer has memory for', () => {
  const COST = 1536

  it('goes at once, the rest in order when answers come, and not what was given up meanwhile', async () => {
    const requests = new PendingRequests('test', 2 * COST)
    const sent: number[] = []
    const added = [1, 2, 3, 4, 5].map(() => requests.add(60_000))
    const begin = (correlation: number) => {
      sent.push(correlation)
      requests.sent(correlation)
    }
    for (const { correlation, response } of added) {
      response.catch(() => {})
      requests.ask(correlation, EMPTY, () => begin(correlation))
    }
    expect(sent).toEqual([1, 2])
    requests.reject(3, new Error('given up'))
    requests.answer(2, ({ resolve }) => resolve(ANSWER))
    expect(sent).toEqual([1, 2, 4])
    // Nobody waits for it any more, and the peer has it still.
    requests.reject(1, new Error('given up'))
    expect(sent).toEqual([1, 2, 4])
    requests.answer(1, () => expect.unreachable())
    expect(sent).toEqual([1, 2, 4, 5])
  })

  it('what waits is a copy', () => {
    const requests = new PendingRequests('test', COST)
    const sent: Uint8Array[] = []
    const bytes = new Uint8Array([7])
    for (const { correlation } of [requests.add(60_000), requests.add(60_000)])
      requests.ask(correlation, bytes, (kept) => {
        sent.push(kept)
        requests.sent(correlation)
      })
    bytes[0] = 8
    requests.answer(1, () => {})
    expect(sent.map(([byte]) => byte)).toEqual([8, 7])
  })

  it('that time is up for it is said with why', async () => {
    const requests = new PendingRequests('test', COST)
    ask(requests)
    const late = ask(requests, 1)
    await expect(late.response).rejects.toMatchObject({
      code: 'ETIMEDOUT',
      message: /1536 bytes of requests/,
    })
  })
})
