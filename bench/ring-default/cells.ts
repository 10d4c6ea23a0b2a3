// The cells: what is sent, of which size, where the two ends are placed; and the transports of each.
import { join } from 'node:path'
import { type Case, SIZES } from '../ring/cases.js'
import type { Cores } from '../ring/measure.js'

/**
 * Which core each end is pinned to. Where the scheduler puts two ends that sleep decides more than what they run (an
 * echo over Node's net takes nearly three times as long across two cores as on one), so each placement is measured by
 * itself.
 */
export const PLACEMENTS: readonly (Cores & { readonly name: string })[] = [
  { name: 'one core', listening: '1', connecting: '1' },
  { name: 'a core each', listening: '1', connecting: '0' },
]
export type Placement = (typeof PLACEMENTS)[number]

/** With `--quick`: little, some and much to copy. */
const QUICK_SIZES: readonly number[] = [64, 4096, 262_144]

export interface Cell {
  readonly kind: 'messages' | 'requests'
  readonly size: number
  readonly placement: Placement
}

export const cells = (quick: boolean): readonly Cell[] =>
  (['messages', 'requests'] as const).flatMap((kind) =>
    SIZES.filter((size) => !quick || QUICK_SIZES.includes(size)).flatMap((size) =>
      PLACEMENTS.map((placement) => ({ kind, size, placement })),
    ),
  )

export const groupOf = ({ kind, size, placement }: Cell): string => `${size} B, ${kind}, ${placement.name}`

export const [SHM, IWARP, NET, UNIX] = ['ring shm', 'ring iwarp', 'net', 'unix'] as const
export const [NET_COALESCED, UNIX_COALESCED] = ['net, coalesced', 'unix, coalesced'] as const

const shm = (folder: string) => `shm://${join(folder, 'shm.sock')}`
const iwarp = () => 'iwarp://127.0.0.1:0'
const tcp = () => 'tcp://127.0.0.1'
const unix = (folder: string) => `unix://${join(folder, 'unix.sock')}`
const peer = { sizes: SIZES, peer: true }
const coalesced = {
  ...{ transport: 'net-coalesced', rateOnly: true, peer: true },
  sizes: SIZES.filter((size) => size <= 4096),
}

/** One after the other in a round: each of ours between the two that it is held to. */
const CASES: Readonly<Record<Cell['kind'], readonly Case[]>> = {
  messages: [
    { ...peer, name: NET, transport: 'net', at: tcp },
    { ...coalesced, name: NET_COALESCED, at: tcp },
    { sizes: SIZES, name: IWARP, transport: 'default', at: iwarp },
    { sizes: SIZES, name: SHM, transport: 'default', at: shm },
    { ...peer, name: UNIX, transport: 'net', at: unix },
    { ...coalesced, name: UNIX_COALESCED, at: unix },
  ],
  requests: [
    { ...peer, name: NET, transport: 'net-requests', at: tcp },
    { sizes: SIZES, name: IWARP, transport: 'default-requests', at: iwarp },
    { sizes: SIZES, name: SHM, transport: 'default-requests', at: shm },
    { ...peer, name: UNIX, transport: 'net-requests', at: unix },
  ],
}

export const casesOf = ({ kind, size }: Cell): readonly Case[] =>
  CASES[kind].filter(({ sizes }) => sizes.includes(size))
