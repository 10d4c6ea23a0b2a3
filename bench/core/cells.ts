// The names of cells, which of them are wanted, and the pairs that they are with two builds.
import type { Candidate, Group } from './rounds.js'

/** The name of our candidate in a group that has no other of ours. */
export const OURS = 'rdmakit'

/** "64 B: ring shm, polling"; the group's name alone where that is enough. */
export const cellName = (group: string, candidate: string): string =>
  candidate === OURS ? group : `${group}: ${candidate}`

/** A group keeps those of ours that match, and all of its peers; without one of ours it goes. */
export function select(groups: readonly Group[], only: RegExp | undefined): readonly Group[] {
  if (only === undefined) return groups
  return groups.flatMap((group) => {
    const candidates = group.candidates.filter(
      ({ name, peer }) => peer === true || only.test(cellName(group.name, name)),
    )
    return candidates.some(isOurs) ? [{ ...group, candidates }] : []
  })
}

/** The candidates of a pair. */
export const [THIS, OTHER] = ['this', 'other'] as const

/** A group for each cell of ours. The peers are left out: they are the same for both builds. */
export function pairs(groups: readonly Group[], others: readonly Group[]): readonly Group[] {
  return groups.flatMap(({ name: groupName, seconds, candidates }) => {
    const theirs = others.find(({ name }) => name === groupName)?.candidates ?? []
    return candidates.filter(isOurs).flatMap(({ name, measure }) => {
      const other = theirs.find((one) => one.name === name)
      if (other === undefined) return []
      const both = [
        { name: THIS, measure },
        { name: OTHER, measure: other.measure },
      ]
      return [{ name: cellName(groupName, name), seconds, candidates: both }]
    })
  })
}

/** Seconds of all rounds, about. */
export const estimate = (groups: readonly Group[], rounds: number): number =>
  rounds * groups.reduce((sum, { seconds, candidates }) => sum + seconds * candidates.length, 0)

const isOurs = ({ peer }: Candidate): boolean => peer !== true
