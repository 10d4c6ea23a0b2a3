import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { PROVIDERS } from '../helpers/pair.js'

const MESSAGES = effort(1_000_000)
// Compilation, and the timers of the connections, which are more the slower the machine is: 0.8 bytes for each message,
// or 12 for each drain(). An object has 16.
const NOISE_BYTES = 768 * 1024

it.each(PROVIDERS)(
  `drain takes ${MESSAGES} messages over %s without allocating for one`,
  async (_, uri) => {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [
        '--expose-gc',
        fileURLToPath(new URL('../helpers/programs/drain-heap.mjs', import.meta.url)),
        uri(),
        String(MESSAGES),
      ],
      { timeout: 120_000 },
    )
    const { messages, wrong, grown, collections } = JSON.parse(stdout)
    expect({ messages, wrong, collections }).toEqual({ messages: MESSAGES, wrong: 0, collections: 0 })
    expect(grown).toBeLessThan(NOISE_BYTES)
  },
  130_000,
)
