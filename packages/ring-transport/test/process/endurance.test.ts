import { beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { endure, flawless } from '../helpers/endurance.js'
import { PROVIDERS } from '../helpers/pair.js'

const DEADLINE_MS = 600_000
/** Each message is one unit of 64 bytes. A credit counts them modulo 2^21 (native/ring/wire/wire.h), over any provider. */
const UNTIL_CREDITS_WRAP = 2_200_000

// One pair of processes for all runs; the cases look at what they counted.
describe.each(PROVIDERS)('over %s', (provider, uri) => {
  const runs = [
    { mode: 'caller', messages: effort(provider === 'shm' ? UNTIL_CREDITS_WRAP : 500_000) },
    { mode: 'adaptive', messages: effort(200_000) },
    { mode: 'event', messages: effort(200_000) },
  ] as const
  let counted: object[]
  beforeAll(async () => {
    counted = await endure(runs.map((run) => ({ ...run, uri: uri() })))
  }, DEADLINE_MS)

  it.each([
    ['between two processes that poll', 0],
    ['in batches, poller adaptive', 1],
    ['in batches, poller event', 2],
  ] as const)('many messages %s: every word is right', (_, run) => {
    expect(counted[run]).toMatchObject(flawless(runs[run].messages))
  })
})
