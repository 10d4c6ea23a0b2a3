import { array, assert, constantFrom, integer, property, record } from 'fast-check'
import { describe, expect, it } from 'vitest'
import { budgetOf, keptForEach, refusalOfPlace } from '../../src/server/admission/connection-budget.js'

const taken = (counts: Record<string, number>) => new Map(Object.entries(counts))

describe('a place among several tenants', () => {
  it.each([
    ['is there', { small: 0 }, undefined],
    ['is there up to what is kept for the others', { small: 191 }, undefined],
    ['is kept for who has none', { small: 192 }, 'kept for others'],
    ['is there when the others have theirs', { small: 192, prod: 64 }, 'none left'],
    ['is there as long as one is left', { small: 191, prod: 64 }, undefined],
  ])('%s', (_, counts, refusal) => {
    expect(refusalOfPlace('small', undefined, { total: 256, tenants: 2, taken: taken(counts) })).toBe(refusal)
  })

  it('is not given beyond what its file says', () => {
    const places = { total: 256, tenants: 2, taken: taken({ small: 3 }) }
    expect(refusalOfPlace('small', 3, places)).toBe('own limit')
    expect(refusalOfPlace('small', 4, places)).toBeUndefined()
  })

  it('is the only tenant’s, all of them', () => {
    expect(refusalOfPlace('a', undefined, { total: 4, tenants: 1, taken: taken({ a: 3 }) })).toBeUndefined()
    expect(refusalOfPlace('a', undefined, { total: 4, tenants: 1, taken: taken({ a: 4 }) })).toBe('none left')
  })

  it('is always there for who has fewer than are kept for it, whatever the others do', () => {
    const names = ['a', 'b', 'c', 'd'] as const
    const steps = array(record({ who: constantFrom(...names), gives: integer({ min: 0, max: 3 }) }), {
      maxLength: 200,
    })
    assert(
      property(integer({ min: 1, max: 40 }), steps, (total, all) => {
        const counts = new Map<string, number>()
        for (const { who, gives } of all) {
          const mine = counts.get(who) ?? 0
          if (gives === 0 && mine > 0) counts.set(who, mine - 1)
          else if (
            refusalOfPlace(who, undefined, { total, tenants: names.length, taken: counts }) === undefined
          )
            counts.set(who, mine + 1)
          const places = { total, tenants: names.length, taken: counts }
          expect([...counts.values()].reduce((sum, one) => sum + one, 0)).toBeLessThanOrEqual(total)
          for (const name of names)
            if ((counts.get(name) ?? 0) < keptForEach(places))
              expect(refusalOfPlace(name, undefined, places)).toBeUndefined()
        }
      }),
    )
  })
})

describe('what RLIMIT_NOFILE leaves', () => {
  const wishes = { sessions: 256, listeners: 1, descriptorsEach: 1, descriptorsOfSlabs: 0 }

  it('is enough for all on a usual machine', () => {
    expect(budgetOf({ limit: 2 ** 20, open: 40 }, wishes)).toEqual({
      greetings: 32,
      line: 2048,
      sessions: 256,
      dataConnections: 65_536,
    })
  })

  it('is never given out twice', () => {
    const some = record({
      limit: integer({ min: 300, max: 100_000 }),
      open: integer({ min: 20, max: 60 }),
      listeners: integer({ min: 1, max: 2 }),
      descriptorsEach: constantFrom(1, 2, 8),
      descriptorsOfSlabs: integer({ min: 0, max: 50 }),
    })
    assert(
      property(some, ({ limit, open, ...rest }) => {
        const budget = budgetOf({ limit, open }, { ...wishes, ...rest })
        const { greetings, sessions, dataConnections } = budget
        expect(Math.min(greetings - 15, sessions, dataConnections)).toBeGreaterThan(0)
        // The least that there is of each is more than there is, where there is next to nothing.
        if (greetings === 16 || dataConnections === 1) return
        const used = (greetings + sessions + dataConnections) * rest.descriptorsEach
        expect(open + used + rest.descriptorsOfSlabs).toBeLessThan(limit)
      }),
    )
  })
})
