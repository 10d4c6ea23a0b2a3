import { readdirSync, readFileSync } from 'node:fs'
import type { ProviderName } from '@rdmakit/verbs'
import type { Descriptors } from './connection-budget.js'

/** Descriptors of one connection at most, by what carries it: shm passes those of its memory too. */
export const DESCRIPTORS_EACH: Readonly<Record<ProviderName, number>> = { iwarp: 1, ibverbs: 2, shm: 8 }

/** The descriptors of this process (RLIMIT_NOFILE, which Node raises to the hard limit at its start). */
export function ownDescriptors(): Descriptors {
  const [, limit] = /^Max open files\s+(\d+|unlimited)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
  return {
    limit: limit === undefined || limit === 'unlimited' ? 2 ** 20 : Number(limit),
    open: readdirSync('/proc/self/fd').length,
  }
}
