import { expect, test } from 'vitest'
import { estimate, OURS, pairs, select } from '../core/cells.js'
import type { Group } from '../core/rounds.js'

const measure = async () => ({ figure: 1 })
const groups: readonly Group[] = [
  {
    name: '64 B',
    seconds: 2,
    candidates: [
      { name: 'ring shm', measure },
      { name: 'ring iwarp', measure },
      { name: 'net', peer: true, measure },
    ],
  },
  {
    name: 'shm WRITE',
    seconds: 1,
    candidates: [
      { name: OURS, measure },
      { name: 'UCX', peer: true, measure },
    ],
  },
]

const names = (some: readonly Group[]) =>
  some.map(({ name, candidates }) => [name, ...candidates.map((candidate) => candidate.name)])

test('without a pattern all cells are measured', () => {
  expect(select(groups, undefined)).toBe(groups)
})

test('a pattern chooses cells of ours, whose peers stay', () => {
  expect(names(select(groups, /^64 B: ring iwarp$/))).toEqual([['64 B', 'ring iwarp', 'net']])
  expect(names(select(groups, /^shm WRITE$/))).toEqual([['shm WRITE', OURS, 'UCX']])
})

test('a peer alone is no reason to measure anything', () => {
  expect(select(groups, /net|UCX/)).toEqual([])
})

test('two builds are measured cell by cell, without peers', () => {
  expect(names(pairs(groups, groups))).toEqual([
    ['64 B: ring shm', 'this', 'other'],
    ['64 B: ring iwarp', 'this', 'other'],
    ['shm WRITE', 'this', 'other'],
  ])
})

test('the time of a run is that of all samples', () => {
  expect(estimate(groups, 5)).toBe(5 * (3 * 2 + 2 * 1))
})
