import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { chooseServer, fits, placeSlabs } from '../src/slabs/placement.js'

/** Servers of 0 … 40 free slabs, and a source of numbers that the runner can shrink. */
const room = fc.array(fc.nat(40), { minLength: 1, maxLength: 8 })
const replicas = fc.integer({ min: 1, max: 3 })
const random = fc
  .infiniteStream(fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }))
  .map((stream) => {
    return () => stream.next().value as number
  })

/** Numbers that look random, the same for each seed (xorshift32). */
function honest(seed: number) {
  let state = seed | 1
  return () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) / 2 ** 32
  }
}

/** As many slabs as go in, by trying: each takes the roomiest servers. */
function most(given: readonly number[], copies: number): number {
  const left = [...given]
  for (let slabs = 0; ; slabs++) {
    left.sort((a, b) => b - a)
    if ((left[copies - 1] ?? 0) === 0) return slabs
    for (let i = 0; i < copies; i++) left[i] = (left[i] as number) - 1
  }
}

describe('placing slabs', () => {
  it('fits exactly what can be placed', () => {
    fc.assert(
      fc.property(room, replicas, (given, copies) => {
        const slabs = most(given, copies)
        expect(fits(given, slabs, copies)).toBe(true)
        expect(fits(given, slabs + 1, copies)).toBe(false)
      }),
    )
  })

  it('places whatever fits, within each server’s room, no server twice for one slab', () => {
    fc.assert(
      fc.property(room, replicas, random, fc.nat(100), (given, copies, draw, percent) => {
        const slabs = Math.floor((most(given, copies) * percent) / 100)
        const places = placeSlabs(given, slabs, copies, draw)
        expect(places).toHaveLength(slabs)
        const taken = given.map(() => 0)
        for (const place of places) {
          expect(new Set(place).size).toBe(copies)
          expect(place).toHaveLength(copies)
          for (const server of place) taken[server] = (taken[server] as number) + 1
        }
        for (const [server, count] of taken.entries()) expect(count).toBeLessThanOrEqual(given[server] ?? 0)
      }),
    )
  })

  it('refuses what does not fit', () => {
    fc.assert(
      fc.property(room, replicas, (given, copies) => {
        expect(() => placeSlabs(given, most(given, copies) + 1, copies)).toThrow(RangeError)
      }),
    )
  })

  it('spreads slabs over servers of the same size', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 8 }), replicas, fc.integer(), (servers, copies, seed) => {
        fc.pre(servers >= copies)
        const taken = Array.from({ length: servers }, () => 0)
        const slabs = Math.floor((servers * 100) / copies / 2)
        for (const server of placeSlabs(Array(servers).fill(100), slabs, copies, honest(seed)).flat())
          taken[server] = (taken[server] as number) + 1
        // One choice alone would put them some 30 apart.
        expect(Math.max(...taken) - Math.min(...taken)).toBeLessThan(12)
      }),
    )
  })

  it('chooses by the room of two drawn servers, and none without room', () => {
    fc.assert(
      fc.property(room, random, fc.nat(7), (given, draw, excluded) => {
        const server = chooseServer(given, new Set([excluded]), draw)
        const candidates = given.flatMap((free, index) => (free > 0 && index !== excluded ? [index] : []))
        if (candidates.length === 0) {
          expect(server).toBeUndefined()
          return
        }
        expect(candidates).toContain(server)
        // Never the fullest of several: of any two it takes the other one.
        const least = Math.min(...candidates.map((index) => given[index] as number))
        const fullest = candidates.filter((index) => given[index] === least)
        if (fullest.length === 1 && candidates.length > 1) expect(server).not.toBe(fullest[0])
      }),
    )
  })
})
