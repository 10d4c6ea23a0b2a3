// 100,000 requests outstanding each way at once: what outstanding.test.ts does with fewer, which takes a tenth of the
// time for every change.
import { expect, it } from 'vitest'
import { outstanding } from '../helpers/outstanding.js'
import { PROVIDERS, pairOfTest } from '../helpers/pair.js'

const DEADLINE_MS = 600_000
const COUNT = 100_000
const SEED = 20_261_126

it.each(PROVIDERS)(
  '100,000 outstanding both ways at once over %s: only the slow time out',
  async (_, uri) => {
    const ends = await pairOfTest(uri())
    const { right, timedOut, slow, wrong } = await outstanding(ends, COUNT, SEED)
    expect(wrong).toEqual([])
    expect({ timedOut, right }).toEqual({ timedOut: slow, right: 2 * COUNT - slow })
    await expect.poll(() => [ends.a, ends.b].map((one) => one.statistics().requestMemory)).toEqual([0, 0])
  },
  DEADLINE_MS,
)
