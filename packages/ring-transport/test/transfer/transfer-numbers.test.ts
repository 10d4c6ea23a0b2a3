// Numbers of offers and tags of READs where their top bit changes, and where they wrap around.
import { ConnectionId } from '@rdmakit/verbs'
import { expect, it } from 'vitest'
import { Exchange } from '../../src/connection/exchange.js'
import { type RingConnection, RingServer } from '../../src/index.js'
import { connectLink } from '../../src/setup/establish.js'
import { settings } from '../../src/setup/options.js'
import { PROVIDERS } from '../helpers/pair.js'
import { HANG_MS, pattern } from '../helpers/processes.js'

const LARGE = 2 ** 20 + 1

it.each(
  PROVIDERS.flatMap(([provider, uri]) => [
    [provider, uri, 0x7fff_fffd] as const,
    [provider, uri, 0xffff_fffd] as const,
  ]),
)('offers and READs over %s, from $2 on', async (_, uri, start) => {
  let accepted!: (connection: RingConnection) => void
  const arrived = new Promise<RingConnection>((resolve) => {
    accepted = resolve
  })
  const server = await RingServer.listen(uri(), { onConnection: accepted })
  try {
    const chosen = settings({})
    const link = await connectLink(await ConnectionId.resolve(server.uri, chosen.wait), 3, chosen)
    const exchange = new Exchange(link, {} as RingConnection)
    exchange.transfers.startAt(start)
    const peer = await arrived
    const seen: boolean[] = []
    for (const messages of [exchange.inbox.observe('copies'), peer.messages])
      messages.subscribe((message) =>
        seen.push(Buffer.compare(message.data, pattern(LARGE, message.immediate)) === 0),
      )
    // Five numbers, and ten READs.
    for (let immediate = 0; immediate < 5; immediate++) {
      await exchange.transfers.transmit(pattern(LARGE, immediate), { immediate, timeout: HANG_MS })
      await peer.transmit(pattern(LARGE, immediate), { immediate, timeout: HANG_MS })
    }
    await expect.poll(() => seen).toEqual(Array.from({ length: 10 }, () => true))
    // One that is withdrawn is found by its number as well.
    const abort = new AbortController()
    const offered = new Promise<AbortSignal>((resolve) => {
      peer.offers.subscribe(({ signal }) => resolve(signal))
    })
    const given = exchange.transfers.transmit(new Uint8Array(LARGE), { signal: abort.signal })
    const signal = await offered
    abort.abort(new Error('enough'))
    await expect(given).rejects.toThrow('enough')
    await expect.poll(() => signal.aborted).toBe(true)
    await expect.poll(() => exchange.transfers.count).toBe(0)
    await exchange.lifecycle.close()
    expect(await peer.closed).toBeUndefined()
  } finally {
    await server.close({ drain: false })
  }
})
