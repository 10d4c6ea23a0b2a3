// What has come to a connection before anybody was there for it: it is delivered before the end, or let go of.
import { ConnectionId } from '@rdmakit/verbs'
import { expect, it } from 'vitest'
import { RingConnection, RingServer } from '../../src/index.js'
import { connectLink } from '../../src/setup/establish.js'
import { settings } from '../../src/setup/options.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const MESSAGE = new Uint8Array([1, 2, 3])

/** A link to a server that has sent a message and broken the connection, of which nobody has heard yet. */
async function left(provider: (typeof PROVIDERS)[number]) {
  const server = await RingServer.listen(listenUri(provider), {
    poller: 'event',
    onConnection(connection) {
      connection.send(MESSAGE)
      connection.flush()
    },
  })
  const chosen = settings({ poller: 'caller', heartbeat: 0 })
  const link = await connectLink(await ConnectionId.resolve(server.uri, chosen.wait), 3, chosen)
  await expect.poll(() => link.counters.all().framesReceived).toBe(1)
  await server.close({ drain: false })
  return link
}

it.each(PROVIDERS)('over %s, of a connection that never begins: its memory is free', async (provider) => {
  const link = await left(provider)
  await link.destroy()
  expect(link.protectionDomain.closed).toBe(true)
})

it.each(PROVIDERS)(
  'over %s, of one that ends in the turn in which it was made: it is delivered',
  async (provider) => {
    const link = await left(provider)
    await link.id.disconnected
    const connection = new RingConnection(link)
    const messages: Uint8Array[] = []
    connection.messages.subscribe(({ data }) => messages.push(data))
    let over = false
    void connection.closed.then(() => {
      over = true
    })
    // No other turn of the event loop comes: a program may poll as soon as it has a connection.
    for (let turns = 0; turns < 10_000 && !over; turns++) {
      link.poller.drain()
      await Promise.resolve()
    }
    expect(await connection.closed).toMatchObject({ code: 'ECONNRESET' })
    await new Promise(setImmediate)
    expect(messages).toEqual([MESSAGE])
    expect(link.protectionDomain.closed).toBe(true)
  },
)
