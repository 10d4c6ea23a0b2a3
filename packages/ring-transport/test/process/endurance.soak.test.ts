// Faults that show once in millions of messages. endurance.test.ts has fewer of them: so many take too long for every
// change.
import { beforeAll, describe, expect, it } from 'vitest'
import { endure, flawless } from '../helpers/endurance.js'
import { PROVIDERS } from '../helpers/pair.js'

const DEADLINE_MS = 600_000
const RUNS = [
  { messages: 24_000_000, mode: 'caller' },
  { messages: 2_000_000, mode: 'adaptive' },
  { messages: 2_000_000, mode: 'event' },
] as const

// One pair of processes for all runs; the cases look at what they counted.
describe.each(PROVIDERS)('over %s', (_, uri) => {
  let counted: object[]
  beforeAll(async () => {
    counted = await endure(RUNS.map((run) => ({ ...run, uri: uri() })))
  }, DEADLINE_MS)

  it.each([
    ['24 million messages between two processes that poll', 0],
    ['2 million messages in batches, poller adaptive', 1],
    ['2 million messages in batches, poller event', 2],
  ] as const)('%s: every word is right', (_, run) => {
    expect(counted[run]).toMatchObject(flawless(RUNS[run].messages))
  })
})
