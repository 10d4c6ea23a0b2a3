// Connections of clients that do not close them when the server does, which waits some seconds for that. A client takes
// no descriptor and no memory of others by coming again and again meanwhile.
import { RingConnection } from '@rdmakit/ring-transport'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { DEAD_KEY, holdMemory, sharedAreas } from '../../../../test/shm-hazard.js'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { control } from '../../src/protocol/messages.js'
import { ticketOf } from '../../src/protocol/resume-ticket.js'
import { ADDRESSES, dataPath, MIB } from '../fixture.js'
import { type MuteClient, muteClient } from './mute-client.js'

const VERSION = 1

let server: SwapServer
let uri: string
let clients: MuteClient[]
/** how many of them have been connected at once */
let peak: number

async function come(request: control.Request.$Properties, ticket?: Uint8Array): Promise<void> {
  clients.push(await muteClient(uri, [request], ticket))
  peak = Math.max(peak, clients.filter(({ connected }) => connected).length)
}

describe.each(Object.entries(ADDRESSES))('a client that closes no connection, over %s', (_, address) => {
  beforeEach(async () => {
    server = new SwapServer({ memory: MIB, slabSize: MIB, greetingTimeout: 60_000 })
    uri = await server.listen(address())
    clients = []
    peak = 0
  })

  afterEach(async () => {
    for (const client of clients) client.close()
    await server.close()
  })

  it('has one of a session that it takes up again and again', async () => {
    const session = await SwapServerSession.open([uri], { linger: 60_000 })
    const { session: id, token } = session.identity
    const hello = { version: VERSION, lingerMs: 60_000, resume: { session: id, token } }
    for (let i = 0; i < 24; i++) await come({ hello }, ticketOf({ id, token }))
    // The end of the one before may be on its way.
    expect(peak).toBeLessThan(6)
    expect(server.sessions).toBe(1)
    await session.close()
  })

  it('has a place for each that is refused, and no more than there are', async () => {
    const { greetings } = server.budget
    const hello = { version: VERSION, resume: { session: 1, token: Buffer.alloc(16, 1) } }
    for (let i = 0; i < 2 * greetings; i++) await come({ hello })
    expect(peak).toBeLessThan(1.5 * greetings)
    const session = await SwapServerSession.open([uri])
    await session.close()
  })
})

it('a client without a ticket that waits for the end of its data connections keeps its place', async () => {
  server = new SwapServer({ memory: MIB, slabSize: MIB, descriptors: { limit: 1024, open: 40 } })
  onTestFinished(() => server.close())
  uri = await server.listen(ADDRESSES.shm())
  const { greetings } = server.budget
  const session = await SwapServerSession.open([uri], { linger: 60_000 })
  const before = new Set(sharedAreas())
  await dataPath(session)
  const held = sharedAreas().filter((area) => !before.has(area))
  holdMemory(held, DEAD_KEY)
  onTestFinished(() => holdMemory(held, 0))
  const { session: id, token } = session.identity
  const hello = { version: VERSION, lingerMs: 60_000, resume: { session: id, token } }
  const coming = await RingConnection.connect(uri)
  onTestFinished(() => coming.close({ drain: false }))
  const answer = coming.request(control.Request.encode({ hello }).finish())
  for (let i = 0; i < greetings + 1; i++) {
    const stranger = await RingConnection.connect(uri)
    onTestFinished(() => stranger.close({ drain: false }))
  }
  holdMemory(held, 0)
  const { hello: reply, failure } = control.Response.decode(await answer)
  // A slow machine may need longer than the server waits. Without its place it would have no answer.
  expect(reply?.resumed === true || failure?.code === 'ETIMEDOUT').toBe(true)
})
