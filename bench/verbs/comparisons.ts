// Each figure of verbs with its peer and its limit.
import { join } from 'node:path'
import type { Build } from '../against/build.js'
import type { Place } from '../suite.js'
import { libfabric } from './libfabric.js'
import { memcpy, pingpong, slots, type VerbsFigures } from './programs.js'
import { ucx } from './ucx.js'

export interface Comparison {
  readonly name: string
  readonly unit: string
  readonly figure: keyof VerbsFigures
  /** How long one sample takes, about. */
  readonly seconds: number
  readonly ours: (build: Build) => Promise<VerbsFigures>
  readonly peer: { readonly name: string; readonly measure: (build: Build) => Promise<Partial<VerbsFigures>> }
  /** Of our figure, of its ratio to the peer's, or of its distance from it; a figure is better below '≤'. */
  readonly limit: {
    readonly of: 'figure' | 'ratio' | 'difference'
    readonly bound: '≤' | '≥'
    readonly value: number
  }
}

const MIB = 2 ** 20
/** Quick runs take this share of the iterations. */
const QUICK = 0.1

export function comparisons({ folder, quick }: Place): readonly Comparison[] {
  const shm = `shm://${join(folder, 'shm.sock')}`
  const iwarp = 'iwarp://127.0.0.1:0'
  const of = (iterations: number) => Math.ceil(iterations * (quick ? QUICK : 1))
  const latency = { unit: 'µs', figure: 'p50Us', seconds: 1 } as const
  const mean = { unit: 'µs', figure: 'averageUs', seconds: 1 } as const
  const bandwidth = { unit: 'MiB/s', figure: 'mebibytesPerSecond', seconds: 1.5 } as const
  const rate = { unit: 'M/s', figure: 'millionPerSecond', seconds: 1.5 } as const
  const atMost = (value: number) => ({ of: 'ratio', bound: '≤', value }) as const
  const atLeast = (value: number) => ({ of: 'ratio', bound: '≥', value }) as const
  const chained = (chain: number) => (build: Build) =>
    pingpong(build, shm, 'write-rate', { iterations: of(4_000_000), chain })
  const bursts = {
    name: 'UCX posix ucp_put_bw',
    measure: () => ucx('posix', 'ucp_put_bw', 64, of(2_000_000)),
  }
  return [
    {
      ...latency,
      name: 'shm WRITE 64 B, one way',
      ours: (build) => pingpong(build, shm, 'write-lat', { iterations: of(200_000) }),
      peer: { name: 'UCX posix ucp_put_lat', measure: () => ucx('posix', 'ucp_put_lat', 64, of(200_000)) },
      limit: atMost(1.3),
    },
    {
      ...latency,
      name: 'shm SEND 64 B, one way',
      ours: (build) => pingpong(build, shm, 'send-lat', { iterations: of(200_000) }),
      peer: { name: 'UCX posix tag_lat', measure: () => ucx('posix', 'tag_lat', 64, of(200_000)) },
      limit: atMost(1),
    },
    {
      ...rate,
      name: 'shm WRITE 64 B, one each post',
      ours: chained(1),
      peer: bursts,
      limit: { of: 'figure', bound: '≥', value: 10 },
    },
    {
      ...rate,
      name: 'shm WRITE 64 B, 16 each post',
      ours: chained(16),
      peer: bursts,
      limit: { of: 'figure', bound: '≥', value: 10 },
    },
    {
      ...rate,
      name: 'shm WRITE 64 B from TypeScript, 64 slots each post',
      ours: (build) => slots(build, shm, 'many', of(4_000_000)),
      peer: { name: 'the same from C++, 16 each post', measure: chained(16) },
      limit: { of: 'figure', bound: '≥', value: 2 },
    },
    {
      name: 'shm WRITE 64 B from TypeScript, post and poll one',
      unit: 'ns',
      figure: 'nanosecondsEach',
      seconds: 1.5,
      ours: (build) => slots(build, shm, 'one', of(1_000_000)),
      peer: {
        name: 'the same from C++',
        measure: (build) =>
          pingpong(build, shm, 'write-bw', { size: 64, depth: 1, iterations: of(1_000_000) }),
      },
      limit: { of: 'difference', bound: '≤', value: 300 },
    },
    {
      ...bandwidth,
      name: 'shm WRITE 1 MiB',
      ours: (build) => pingpong(build, shm, 'write-bw', { size: MIB, iterations: of(4000) }),
      peer: { name: 'memcpy', measure: (build) => memcpy(build, of(4000)) },
      limit: atLeast(0.8),
    },
    {
      ...latency,
      name: 'iwarp SEND 64 B, one way',
      ours: (build) => pingpong(build, iwarp, 'send-lat', { iterations: of(50_000) }),
      peer: { name: 'UCX tcp tag_lat', measure: () => ucx('tcp', 'tag_lat', 64, of(50_000)) },
      limit: atMost(1.1),
    },
    ...(['shm', 'iwarp'] as const).map(
      (provider): Comparison => ({
        ...mean,
        name: `${provider} SEND 64 B, one way, mean`,
        ours: (build) =>
          pingpong(build, provider === 'shm' ? shm : iwarp, 'send-lat', { iterations: of(50_000) }),
        peer: {
          name: `libfabric ${provider === 'shm' ? 'shm' : 'tcp'} fi_pingpong`,
          measure: () => libfabric(provider === 'shm' ? 'shm' : 'tcp', 64, of(50_000)),
        },
        limit: atMost(1),
      }),
    ),
    {
      ...bandwidth,
      name: 'iwarp WRITE 1 MiB',
      ours: (build) => pingpong(build, iwarp, 'write-bw', { size: MIB, iterations: of(2000) }),
      peer: { name: 'UCX tcp tag_bw', measure: () => ucx('tcp', 'tag_bw', MIB, of(2000)) },
      limit: atLeast(1),
    },
  ]
}
