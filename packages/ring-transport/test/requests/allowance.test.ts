import { expect, it } from 'vitest'
import { Allowance, requestAllowance, requestCost, type Turn } from '../../src/requests/allowance.js'

class Called implements Turn {
  readonly cost: number
  turn: Turn['turn']
  readonly #call: (turn: Turn) => void

  constructor(cost: number, call: (turn: Turn) => void) {
    this.cost = cost
    this.#call = call
  }

  begin(): void {
    this.#call(this)
  }
}

/** One that calls `call` when its turn comes. */
function enter(allowance: Allowance, cost: number, call: (turn: Turn) => void): Turn {
  const turn = new Called(cost, call)
  allowance.enter(turn)
  return turn
}

it('is 64 rings of the end that answers, at most 64 MiB, and a request counts for 1536 bytes more than it has', () => {
  expect([4096, 2 ** 16, 2 ** 20, 2 ** 26].map(requestAllowance)).toEqual([
    2 ** 18,
    2 ** 22,
    2 ** 26,
    2 ** 26,
  ])
  expect(requestCost(100)).toBe(1636)
})

it('lets in who fits, in order, and nobody past who waits', () => {
  const allowance = new Allowance(10)
  const begun: string[] = []
  const named = (name: string, cost: number) => enter(allowance, cost, () => begun.push(name))
  const a = named('a', 6)
  const b = named('b', 6)
  named('c', 1)
  expect(begun).toEqual(['a'])
  expect({ used: allowance.used, waiting: allowance.waiting }).toEqual({ used: 6, waiting: 2 })
  allowance.leave(a)
  expect(begun).toEqual(['a', 'b', 'c'])
  allowance.leave(b)
  allowance.leave(b)
  expect(allowance.used).toBe(1)
})

it('one that gives up its place makes room for those behind it', () => {
  const allowance = new Allowance(10)
  const begun: string[] = []
  enter(allowance, 6, () => begun.push('a'))
  const b = enter(allowance, 6, () => begun.push('b'))
  enter(allowance, 4, () => begun.push('c'))
  allowance.leave(b)
  expect(begun).toEqual(['a', 'c'])
})

it('one that is larger than all of it goes alone', () => {
  const allowance = new Allowance(10)
  const begun: string[] = []
  const small = enter(allowance, 1, () => begun.push('small'))
  const large = enter(allowance, 100, () => begun.push('large'))
  enter(allowance, 1, () => begun.push('next'))
  expect(begun).toEqual(['small'])
  allowance.leave(small)
  expect(begun).toEqual(['small', 'large'])
  allowance.leave(large)
  expect(begun).toEqual(['small', 'large', 'next'])
})

it('one that leaves as it begins goes on with the next, 100,000 times', () => {
  const allowance = new Allowance(1)
  let begun = 0
  const first = enter(allowance, 1, () => {})
  for (let i = 0; i < 100_000; i++)
    enter(allowance, 1, (turn) => {
      begun++
      allowance.leave(turn)
    })
  expect(allowance.waiting).toBe(100_000)
  allowance.leave(first)
  expect({ begun, used: allowance.used, waiting: allowance.waiting }).toEqual({
    begun: 100_000,
    used: 0,
    waiting: 0,
  })
})
