import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { PendingSessions } from '../../src/server/admission/pending-sessions.js'
import { StrangerGarbage } from '../../src/server/admission/stranger-garbage.js'

const DEADLINE = 5_000
const GRACE = 250

let pending: PendingSessions
const made = (places = 2, line = 3) =>
  new PendingSessions({ places: () => places, line: () => line, deadline: DEADLINE, grace: GRACE })

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  pending = made()
})

afterEach(() => {
  pending.close('the test is over')
  vi.useRealTimers()
})

/** One that enters, and why it was ended. */
function visitor(name?: string) {
  const one = {
    ended: '',
    close(reason: string) {
      one.ended = reason
    },
  }
  pending.enter(one, name)
  return one
}

/** One that waits: undefined until its turn comes, or never will. */
function waits(needsPlace = true) {
  const one: { turn: boolean | undefined } = { turn: undefined }
  void pending.turn(needsPlace).then((turn) => {
    one.turn = turn
  })
  return one
}

const pass = (milliseconds: number) => vi.advanceTimersByTimeAsync(milliseconds)

describe('pending sessions', () => {
  it('has a place for the newest: the oldest makes room', () => {
    const [first, second, third] = [visitor(), visitor(), visitor()]
    expect([first.ended, second.ended, third.ended]).toEqual([expect.stringContaining('too many'), '', ''])
    pending.leave(third)
    visitor()
    expect(second.ended).toBe('')
  })

  it('ends whoever has not shown who it is in time, and nobody who has', async () => {
    const [silent, proved] = [visitor(), visitor()]
    pending.leave(proved)
    await pass(DEADLINE)
    expect(silent.ended).toContain('did not identify itself')
    expect(proved.ended).toBe('')
  })

  it('lets nobody in before the oldest has had its time', async () => {
    visitor()
    await pass(100)
    visitor()
    const next = waits()
    await pass(GRACE - 101)
    expect(next.turn).toBeUndefined()
    await pass(1)
    expect(next.turn).toBe(true)
  })

  it('lets the next in when one has gone', async () => {
    const [first] = [visitor(), visitor()]
    const next = waits()
    await pass(10)
    expect(next.turn).toBeUndefined()
    pending.leave(first)
    await pass(GRACE)
    expect(next.turn).toBe(true)
  })

  it('serves a line in its order, and of a full one the first goes', async () => {
    visitor()
    visitor()
    const [first, second, third, fourth] = [waits(), waits(), waits(), waits()]
    await pass(0)
    expect([first.turn, second.turn, pending.waiting]).toEqual([false, undefined, 3])
    await pass(GRACE)
    expect([second.turn, third.turn]).toEqual([true, undefined])
    visitor()
    await pass(12)
    expect([third.turn, fourth.turn]).toEqual([true, undefined])
  })

  it('serves those who are refused anyhow in their turn, and gives them no place', async () => {
    visitor()
    visitor()
    const [refused, next] = [waits(false), waits(false)]
    await pass(0)
    expect([refused.turn, next.turn]).toEqual([true, undefined])
    await pass(24)
    expect([next.turn, pending.size]).toEqual([true, 2])
  })

  it('lets one who comes back at once wait for 24 ms, and the first of a crowd for 4', async () => {
    const served = async (others: number) => {
      pending.close('it is replaced')
      pending = made(32, 32)
      waits()
      const next = waits()
      for (let i = 0; i < others; i++) waits()
      let passed = 0
      for (; next.turn === undefined; passed++) await pass(1)
      return passed
    }
    expect([await served(0), await served(1), await served(3), await served(30)]).toEqual([24, 12, 6, 4])
  })

  it('keeps nobody in line for longer than its deadline', async () => {
    pending.close('it is replaced')
    pending = made(1)
    visitor()
    const late = waits()
    for (let i = 0; i < 3; i++) waits()
    await pass(DEADLINE)
    expect([late.turn, pending.waiting]).toEqual([false, 0])
  })

  it('has a place for who has shown to belong to a session, beside any crowd', async () => {
    const known = visitor('7')
    for (let i = 0; i < 10; i++) visitor()
    expect([known.ended, pending.size]).toEqual(['', 3])
    const other = visitor('8')
    const again = visitor('7')
    expect([known.ended, other.ended, again.ended]).toEqual([
      expect.stringContaining('of its session'),
      '',
      '',
    ])
    pending.leave(known)
    visitor('9')
    expect(again.ended).toBe('')
  })

  it('has such a place for who shows it later, and one for a session', async () => {
    const [first, second] = [visitor(), visitor()]
    pending.belong(first, '7')
    for (let i = 0; i < 2; i++) visitor()
    expect([first.ended, second.ended]).toEqual(['', expect.stringContaining('too many')])
    const again = visitor()
    pending.belong(again, '7')
    pending.belong(again, '7')
    expect([first.ended, again.ended]).toEqual([expect.stringContaining('of its session'), ''])
    pending.belong(first, '7')
    await pass(DEADLINE)
    expect([again.ended, pending.size]).toEqual([expect.stringContaining('did not identify itself'), 0])
  })

  it('has nobody left when it is closed, and takes nobody', async () => {
    const [inside, waiting] = [visitor(), visitor(), waits()].slice(1) as [
      ReturnType<typeof visitor>,
      { turn?: boolean },
    ]
    pending.close('the server ends')
    await pass(0)
    expect([inside.ended, waiting.turn, pending.size, await pending.turn()]).toEqual([
      'the server ends',
      false,
      0,
      false,
    ])
  })
})

it('garbage is collected after many strangers, and not all the time', () => {
  let collected = 0
  const garbage = new StrangerGarbage(() => collected++)
  for (let i = 0; i < 63; i++) garbage.stranger(0)
  expect(collected).toBe(0)
  garbage.stranger(0)
  expect(collected).toBe(1)
  for (let i = 0; i < 1_000; i++) garbage.stranger(199)
  expect(collected).toBe(1)
  garbage.stranger(200)
  expect(collected).toBe(2)
})
