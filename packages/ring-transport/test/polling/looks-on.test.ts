import { setImmediate as immediate } from 'node:timers/promises'
import { listDevices, openDevice } from '@rdmakit/verbs'
import { expect, it, onTestFinished } from 'vitest'
import { Poller, RingConnection } from '../../src/index.js'
import { HANG_MS, startPeer } from '../helpers/processes.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const CALLS = 5

/** How often a poller that may look on for 10 ms has found nothing, when the peer answers once, then keeps it waiting for 50 ms, five times. */
async function emptyTurns(provider: (typeof PROVIDERS)[number]): Promise<number> {
  const peer = await startPeer('epochs', { uri: listenUri(provider) })
  onTestFinished(() => peer.stop())
  const device = listDevices().find((each) => each.provider === provider)
  if (device === undefined) throw new Error(`no device of ${provider}`)
  const context = openDevice(device.name, provider)
  const poller = new Poller(context, { mode: 'caller', spinMicroseconds: 10_000 })
  const connection = await RingConnection.connect(peer.uri, { poller })
  onTestFinished(async () => {
    await connection.close({ drain: false })
    await poller.close()
  })
  const before = poller.statistics().emptyTurns
  for (let call = 0; call < CALLS; call++) {
    await connection.request(new Uint8Array(1))
    await expect(connection.request(new Uint8Array(), { timeout: 50 })).rejects.toThrow()
  }
  return poller.statistics().emptyTurns - before
}

// Costs half a second each. A turn takes less than a microsecond; 10 are of what is sent and of heartbeats.
// Beside threads that compute a turn takes milliseconds, and there are few, so it is tried again.
it.each(PROVIDERS)(
  'an event loop that has nothing to do looks on over %s before it sleeps',
  async (provider) => {
    for (const deadline = Date.now() + HANG_MS; (await emptyTurns(provider)) <= 100; )
      expect(Date.now(), 'it never looked on').toBeLessThan(deadline)
  },
  HANG_MS + 10_000,
)

it.each(PROVIDERS)('an event loop that has something to do looks at %s once', async (provider) => {
  let over = false
  const busy = (async () => {
    while (!over) await immediate()
  })()
  try {
    expect(await emptyTurns(provider)).toBeLessThan(10 * CALLS)
  } finally {
    over = true
    await busy
  }
})
