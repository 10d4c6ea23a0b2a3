import { expect, it } from 'vitest'
import { PendingRequests } from '../src/requests.js'

type Added = ReturnType<PendingRequests['add']>
const ANSWER = new Uint8Array([1])

it('numbers begin at 1 and wrap behind 2^32 − 1', () => {
  const requests = new PendingRequests('test')
  requests.last = 0xffff_fffd
  const numbers = [1, 2, 3].map(() => requests.add(60_000).correlation)
  expect(numbers).toEqual([0xffff_fffe, 0xffff_ffff, 1])
  expect(new PendingRequests('test').add(60_000).correlation).toBe(1)
})

it('numbers that are pending, or may still be answered, are skipped when they come round', async () => {
  const requests = new PendingRequests('test')
  const numbers = [1, 2, 3].map(() => requests.add(60_000))
  const [, given, answered] = numbers as [Added, Added, Added]
  requests.sent(2)
  requests.reject(2, new Error('aborted'))
  await expect(given.response).rejects.toThrow('aborted')
  requests.answer(3, ({ resolve }) => resolve(ANSWER))
  expect(await answered.response).toBe(ANSWER)
  requests.last = 0xffff_ffff
  expect(requests.add(60_000).correlation).toBe(3)
  expect(requests.add(60_000).correlation).toBe(4)
})

it('an answer is taken once, also when nobody waits for it any more', async () => {
  const requests = new PendingRequests('test')
  const settle = ({ resolve }: { resolve: (value: Uint8Array) => void }) => resolve(ANSWER)
  const answered = requests.add(60_000)
  expect(requests.answer(answered.correlation, settle)).toBe(true)
  expect(requests.answer(answered.correlation, settle)).toBe(false)
  const late = requests.add(1)
  requests.sent(late.correlation)
  await expect(late.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(requests.answer(late.correlation, settle)).toBe(true)
  expect(requests.answer(late.correlation, settle)).toBe(false)
  const unsent = requests.add(1)
  await expect(unsent.response).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  expect(requests.answer(unsent.correlation, settle)).toBe(false)
  expect(requests.answer(77, settle)).toBe(false)
})
