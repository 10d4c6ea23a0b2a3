// Verbs in C++ between two processes, each on its core: shm beside UCX over POSIX shared memory, iwarp beside UCX
// over TCP on loopback; and the cost of an idle queue pair.
import { join } from 'node:path'
import type { Build } from './against/build.js'
import { OURS } from './core/cells.js'
import type { Limit, Table } from './core/report.js'
import type { Group, Samples } from './core/rounds.js'
import { differences, ratios } from './core/statistics.js'
import type { Place, Suite } from './suite.js'
import { type Comparison, comparisons } from './verbs/comparisons.js'
import { many } from './verbs/programs.js'

const QUEUE_PAIRS = 1000
const PROVIDERS = ['iwarp', 'shm'] as const
const idle = (provider: string) => `${provider}, ${QUEUE_PAIRS} idle queue pairs`

export function verbs(place: Place): Suite {
  const all = comparisons(place)
  return {
    name: 'verbs',
    about: 'two processes, each on a core of its own, connected anew for each sample',
    figures: [
      { key: 'p50Us', name: 'latency', unit: 'µs', better: 'lower' },
      { key: 'averageUs', name: 'latency, mean', unit: 'µs', better: 'lower' },
      { key: 'mebibytesPerSecond', name: 'bandwidth', unit: 'MiB/s', better: 'higher' },
      { key: 'millionPerSecond', name: 'rate', unit: 'M/s', better: 'higher' },
      { key: 'nanosecondsEach', name: 'time', unit: 'ns', better: 'lower' },
      { key: 'kibibytesEach', name: 'memory of each', unit: 'KiB', better: 'lower' },
    ],
    groups: (build) => [
      ...all.map((one) => comparisonGroup(one, build)),
      ...PROVIDERS.map((provider) => idleGroup(provider, place, build)),
    ],
    report: (samples) => ({
      tables: [comparisonTable(all, samples), idleTable(samples)],
      limits: all.flatMap((one) => limitOf(one, samples)),
    }),
  }
}

/** A sample holds the one figure that is looked at. */
function comparisonGroup({ name, figure, seconds, ours, peer }: Comparison, build: Build): Group {
  const candidates = [
    { name: OURS, measure: async () => ({ [figure]: (await ours(build))[figure] }) },
    {
      name: peer.name,
      peer: true,
      measure: async () => ({ [figure]: (await peer.measure(build))[figure] ?? Number.NaN }),
    },
  ]
  return { name, seconds, candidates }
}

function idleGroup(provider: string, { folder }: Place, build: Build): Group {
  const uri = provider === 'shm' ? `shm://${join(folder, 'many.sock')}` : 'iwarp://127.0.0.1:0'
  const measure = async () => {
    const { anonymousKiB, sharedKiB, idleSeconds, processorSeconds } = await many(build, uri, QUEUE_PAIRS)
    return {
      anonymousKiB,
      sharedKiB,
      kibibytesEach: anonymousKiB + sharedKiB,
      processorPercent: (100 * processorSeconds) / idleSeconds,
    }
  }
  return { name: idle(provider), seconds: 5, candidates: [{ name: OURS, measure }] }
}

function comparisonTable(all: readonly Comparison[], samples: Samples): Table {
  return {
    title: 'beside the peer',
    columns: ['what', 'unit', OURS, 'peer', "peer's", "of peer's"],
    rows: measured(all, samples).map(({ name, unit, figure, peer }) => {
      const [ours, theirs] = [samples.of(name, OURS, figure), samples.of(name, peer.name, figure)]
      return [name, unit, ours, peer.name, theirs, ratios(ours, theirs)]
    }),
  }
}

function idleTable(samples: Samples): Table {
  const figures = ['anonymousKiB', 'sharedKiB', 'processorPercent']
  return {
    title: `${QUEUE_PAIRS} connected queue pairs of one process, all idle`,
    columns: ['provider', 'KiB own, each', 'KiB shared, each', 'processor, %'],
    rows: PROVIDERS.filter((provider) => samples.has(idle(provider), OURS)).map((provider) => [
      provider,
      ...figures.map((figure) => samples.of(idle(provider), OURS, figure)),
    ]),
  }
}

function limitOf({ name, unit, figure, peer, limit }: Comparison, samples: Samples): Limit[] {
  if (!samples.has(name, OURS)) return []
  const [ours, theirs] = [samples.of(name, OURS, figure), samples.of(name, peer.name, figure)]
  const { of, bound, value } = limit
  switch (of) {
    case 'figure':
      return [{ what: name, rounds: ours, unit, bound, limit: value }]
    case 'ratio':
      return [{ what: name, rounds: ratios(ours, theirs), unit: `× ${peer.name}`, bound, limit: value }]
    case 'difference':
      return [
        {
          what: name,
          rounds: differences(ours, theirs),
          unit: `${unit} more than ${peer.name}`,
          bound,
          limit: value,
        },
      ]
  }
}

const measured = (all: readonly Comparison[], samples: Samples) =>
  all.filter(({ name }) => samples.has(name, OURS))
