// What becomes of responses that find no room, or never will.
import { expect, it } from 'vitest'
import { pairOfTest } from '../helpers/pair.js'
import { HANG_MS, pattern } from '../helpers/processes.js'
import { MIB } from '../helpers/transfers.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const timeout = HANG_MS
/** No long response may wait. */
const SMALL = { maxResponseMemory: 65_536 }

it.each(PROVIDERS)('over %s, one that is too long fails its request, and no other', async (provider) => {
  const { a, b } = await pairOfTest(listenUri(provider), SMALL, { capacity: 65_536, maxMessageSize: MIB })
  b.handle(({ immediate }) => pattern(immediate, 1))
  const tooLong = a.request(new Uint8Array(), { immediate: MIB + 1, timeout })
  const other = a.request(new Uint8Array(), { immediate: 100, timeout })
  await expect(tooLong).rejects.toMatchObject({ name: 'RemoteError', code: 'EMSGSIZE' })
  expect(await other).toEqual(pattern(100, 1))
  expect(b.isOpen).toBe(true)
  expect(b.statistics().requestsRunning).toBe(0)
})

it.each(PROVIDERS)(
  'over %s, one in parts that all find room does not wait, and does not count',
  async (provider) => {
    // A ring of one window, with room for all of it from the start.
    const ring = { capacity: MIB, wireVersions: [3] as const }
    const { a, b } = await pairOfTest(listenUri(provider), SMALL, ring)
    b.handle(() => pattern(600_000, 1))
    const answer = await a.request(new Uint8Array(), { timeout })
    expect(Buffer.compare(answer, pattern(600_000, 1))).toBe(0)
    expect(b.isOpen).toBe(true)
  },
)
