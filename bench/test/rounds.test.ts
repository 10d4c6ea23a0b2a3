import { expect, test } from 'vitest'
import { type Group, measureRounds } from '../core/rounds.js'

const group = (name: string, ...candidates: Group['candidates']): Group => ({ name, seconds: 1, candidates })

test('every second round goes from the last candidate to the first, and groups stay in order', async () => {
  const order: string[] = []
  const candidate = (name: string) => ({
    name,
    measure: async () => {
      order.push(name)
      return { figure: order.length }
    },
  })
  const groups = [group('one', candidate('a'), candidate('b'), candidate('c')), group('two', candidate('d'))]
  const samples = await measureRounds(groups, 3)
  expect(order.join('')).toBe('abcdcbadabcd')
  expect(samples.of('one', 'a', 'figure')).toEqual([1, 7, 9])
  expect(samples.of('two', 'd', 'figure')).toEqual([4, 8, 12])
})

test('a sample that fails leaves a gap; after two of them its candidate is left alone', async () => {
  let calls = 0
  const measure = async () => {
    calls++
    if (calls > 1) throw new Error(`failure ${calls}`)
    return { figure: 7 }
  }
  const samples = await measureRounds([group('one', { name: 'a', measure })], 5)
  expect(calls).toBe(3)
  expect(samples.of('one', 'a', 'figure')).toEqual([7, Number.NaN, Number.NaN, Number.NaN, Number.NaN])
  expect(samples.failures).toEqual(['one: a: failure 2', 'one: a: failure 3'])
})

test('what was not measured has no rounds', async () => {
  const samples = await measureRounds([], 5)
  expect(samples.of('one', 'a', 'figure')).toEqual([])
  expect(samples.has('one', 'a')).toBe(false)
})

test('progress is told of each sample and each round', async () => {
  const told: unknown[] = []
  const measure = async () => ({})
  await measureRounds([group('one', { name: 'a', measure }, { name: 'b', measure })], 2, {
    begins: (round, cell) => told.push(`${round}, ${cell}`),
    ends: (expected) => told.push(expected),
    roundEnds: (round) => told.push(`${round} is over`),
  })
  expect(told).toEqual([
    ...['1, one: a', 1, '1, one: b', 1, '1 is over'],
    ...['2, one: b', 1, '2, one: a', 1, '2 is over'],
  ])
})
