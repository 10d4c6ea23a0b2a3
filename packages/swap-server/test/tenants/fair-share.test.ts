import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { divide, divideAmongSessions, type ShareOf } from '../../src/server/tenants/fair-share.js'

const tenant = (name: string, use: number, more: Partial<ShareOf> = {}): ShareOf => ({
  name,
  class: 'production',
  weight: 100,
  limit: 0,
  use,
  ...more,
})
const opportunistic = (name: string, use: number, more: Partial<ShareOf> = {}) =>
  tenant(name, use, { class: 'opportunistic', ...more })

const GIGA = 1e9
const tenants = fc
  .array(
    fc.record({
      class: fc.constantFrom('production' as const, 'opportunistic' as const),
      weight: fc.integer({ min: 1, max: 10_000 }),
      limit: fc.oneof(fc.constant(0), fc.integer({ min: 2 ** 20, max: 2 * GIGA })),
      use: fc.integer({ min: 0, max: 2 * GIGA }),
    }),
    { maxLength: 12 },
  )
  .map((all) => all.map((each, at) => ({ ...each, name: `t${at}` })))
const capacity = fc.integer({ min: 2 ** 20, max: 2 * GIGA })
const allowance = fc.integer({ min: 0, max: 2 * GIGA })

describe('the division of a link', () => {
  it('keeps the tenants’ own limits and nothing else when the link is unknown', () => {
    const { limits } = divide(0, [tenant('a', 5, { limit: 7 }), opportunistic('b', 9)], 0)
    expect([...limits]).toEqual([
      ['a', 7],
      ['b', 0],
    ])
  })

  it('limits production only when it fills the link, by weight, and leaves what one does not take to others', () => {
    const of = (a: number, b: number) => {
      const { limits } = divide(100, [tenant('a', a, { weight: 300 }), tenant('b', b)], 0)
      return [limits.get('a'), limits.get('b')]
    }
    expect(of(40, 40)).toEqual([0, 0])
    expect(of(80, 80)).toEqual([75, 25])
    expect(of(20, 80)).toEqual([75, 75])
  })

  it('leaves to others all of the share of one that takes nothing, also where that one has a limit', () => {
    for (const limit of [0, 50]) {
      const { limits } = divide(100, [tenant('idle', 0, { limit }), tenant('a', 60), tenant('b', 40)], 0)
      expect([limits.get('a'), limits.get('b')]).toEqual([50, 50])
    }
  })

  it('lets opportunistic tenants have what production leaves, slowly, and takes it back fast', () => {
    let step = divide(100, [tenant('p', 0), opportunistic('o', 0)], 0)
    const seconds = []
    for (let at = 0; at < 40; at++) {
      const use = step.limits.get('o') ?? 0
      step = divide(100, [tenant('p', 0), opportunistic('o', use)], step.allowance)
      seconds.push(step.allowance)
    }
    expect(seconds[0]).toBe(10)
    expect(Math.max(...seconds)).toBeGreaterThan(90)
    step = divide(100, [tenant('p', 60), opportunistic('o', 40)], step.allowance)
    expect(step.allowance).toBeLessThanOrEqual(40)
    for (let at = 0; at < 8; at++)
      step = divide(100, [tenant('p', 95), opportunistic('o', step.allowance)], step.allowance)
    expect(step.allowance).toBe(1)
  })

  it('never gives a tenant more than its own limit', () => {
    fc.assert(
      fc.property(capacity, tenants, allowance, (link, all, before) => {
        const { limits } = divide(link, all, before)
        for (const { name, limit } of all) {
          const given = limits.get(name) as number
          if (limit > 0) expect(given > 0 && given <= limit).toBe(true)
        }
      }),
    )
  })

  it('never limits a production tenant below its weight’s share, nor at all while there is room', () => {
    fc.assert(
      fc.property(capacity, tenants, allowance, (link, all, before) => {
        const { limits } = divide(link, all, before)
        const production = all.filter((each) => each.class === 'production')
        const weight = production.reduce((total, each) => total + each.weight, 0)
        const used = production.reduce((total, each) => total + each.use, 0)
        for (const each of production) {
          const given = limits.get(each.name) as number
          if (used <= 0.9 * link) expect(given).toBe(each.limit)
          else {
            const share = (link * each.weight) / weight
            expect(given).toBeGreaterThanOrEqual(Math.min(share, each.limit || share) * 0.999)
          }
        }
      }),
    )
  })

  it('leaves production what it uses: opportunistic tenants get the rest, or a hundredth', () => {
    fc.assert(
      fc.property(capacity, tenants, allowance, (link, all, before) => {
        const step = divide(link, all, before)
        const used = all
          .filter((each) => each.class === 'production')
          .reduce((total, each) => total + each.use, 0)
        expect(step.allowance).toBeLessThanOrEqual(Math.max(link - used, link / 100) + 1)
        for (const each of all)
          if (each.class === 'opportunistic') {
            // 0 would mean that it has no limit.
            expect(step.limits.get(each.name)).toBeGreaterThan(0)
            expect(step.limits.get(each.name)).toBeLessThanOrEqual(step.allowance + 1)
          }
      }),
    )
  })
})

describe('the division of a tenant’s limit among its sessions', () => {
  it('adds up to the limit, and starves nobody', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: GIGA }),
        fc.array(fc.integer({ min: 0, max: GIGA }), { minLength: 1, maxLength: 64 }),
        (limit, uses) => {
          const shares = divideAmongSessions(limit, uses)
          expect(shares.reduce((total, share) => total + share, 0)).toBeCloseTo(limit, 0)
          for (const share of shares) expect(share).toBeGreaterThanOrEqual(limit / uses.length / 2.001)
        },
      ),
    )
  })

  it('is none when there is none', () => expect(divideAmongSessions(0, [1, 2])).toEqual([0, 0]))
})
