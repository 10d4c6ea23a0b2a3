import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { PROVIDERS } from './helpers/pair.js'

// What compiling takes, and the timers of the connections: a twentieth of a byte for each message.
const NOISE_BYTES = 512 * 1024

it.each(PROVIDERS)(
  'drain takes 10 million messages over %s without allocating for one',
  async (_, uri) => {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ['--expose-gc', fileURLToPath(new URL('helpers/drain-heap.mjs', import.meta.url)), uri()],
      { timeout: 120_000 },
    )
    const { messages, wrong, grown, collections } = JSON.parse(stdout)
    expect({ messages, wrong, collections }).toEqual({ messages: 10_000_000, wrong: 0, collections: 0 })
    expect(grown).toBeLessThan(NOISE_BYTES)
  },
  130_000,
)
