// The benchmark's cases: each is a pair of processes, for each of its sizes.
import { join } from 'node:path'

export const SIZES = [8, 64, 512, 4096, 32_768, 262_144, 1_048_576] as const
/** Sizes of the steps, which show the cost of a copy and of a wake-up: little, some and much to copy. */
const STEP_SIZES = [64, 32_768, 1_048_576] as const

export interface Case {
  name: string
  /** a name that peer.ts knows */
  transport: string
  /** where to listen; `folder` is a temporary one */
  at: (folder: string) => string
  sizes: readonly number[]
  /** Not ours. */
  peer?: boolean
  /** Messages one way only: its round trips are another case's. */
  rateOnly?: boolean
}

const tcp = () => 'tcp://127.0.0.1'
const unix = (folder: string) => `unix://${join(folder, 'unix.sock')}`
const iwarp = () => 'iwarp://127.0.0.1:0'
const shm = (folder: string) => `shm://${join(folder, 'shm.sock')}`
const all = { sizes: SIZES }
/** Messages in memory of their own, as a program gets them that asks for nothing else: what that costs beside views. */
const copied = { transport: 'event-loop-copies', sizes: STEP_SIZES }
const peer = { sizes: SIZES, peer: true }
const coalesced = {
  transport: 'net-coalesced',
  sizes: SIZES.filter((size) => size <= 4096),
  rateOnly: true,
  peer: true,
}

/** The peers, and the ring in each way of waiting. */
export const CASES: readonly Case[] = [
  { ...all, name: 'ring shm, polling', transport: 'polling', at: shm },
  { ...all, name: 'ring iwarp, polling', transport: 'polling', at: iwarp },
  { ...peer, name: 'net', transport: 'net', at: tcp },
  { ...coalesced, name: 'net, coalesced', at: tcp },
  { ...peer, name: 'unix', transport: 'net', at: unix },
  { ...coalesced, name: 'unix, coalesced', at: unix },
  { ...all, name: 'ring shm, event loop', transport: 'event-loop', at: shm },
  { ...all, name: 'ring iwarp, event loop', transport: 'event-loop', at: iwarp },
  { ...copied, name: 'ring shm, event loop, copied', at: shm },
  { ...copied, name: 'ring iwarp, event loop, copied', at: iwarp },
  { ...all, name: 'ring shm, adaptive thread', transport: 'adaptive', at: shm },
  { ...all, name: 'ring iwarp, adaptive thread', transport: 'adaptive', at: iwarp },
  { ...peer, name: 'zeromq ipc', transport: 'zeromq', at: (folder) => `ipc://${join(folder, 'zeromq.ipc')}` },
  { ...peer, name: 'zeromq tcp', transport: 'zeromq', at: () => 'tcp://127.0.0.1:*' },
]

/** From interrupts and copies to polling and none, each step with what the one before has. */
export const STEPS = [
  { title: 'STEP0 SEND/RECV, interrupt, copies', transport: 'send-receive' },
  { title: 'STEP1 ring, interrupt, copies', transport: 'ring-event' },
  { title: 'STEP2 ring, polling thread, copies', transport: 'ring-poll' },
  { title: 'STEP3 ring, polling program, no copies', transport: 'zero-copy' },
] as const

export const stepCases = (scheme: string, at: Case['at']): Case[] =>
  STEPS.map(({ title, transport }) => ({ name: `${scheme} ${title}`, transport, at, sizes: STEP_SIZES }))

export const STEP_CASES: readonly Case[] = [...stepCases('shm', shm), ...stepCases('iwarp', iwarp)]

/** The group of a size. */
export const groupOf = (size: number): string => `${size} B`

/** The cost of a copy here, beside the messages of 1 MiB. */
export const MEMCPY = 'Buffer.copy of 1 MiB'
