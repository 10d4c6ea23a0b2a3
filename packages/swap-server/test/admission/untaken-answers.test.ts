// A client that asks for long answers and takes none of them: they take no more memory than its connection has.
import { pino } from 'pino'
import { expect, it, onTestFinished } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { ADDRESSES, MIB } from '../fixture.js'
import { muteClient } from './mute-client.js'

const SESSIONS = 24
const QUERIES = 240

it.each(Object.entries(ADDRESSES))(
  'answers that are not taken are not made without end, over %s',
  async (_, address) => {
    const ended: string[] = []
    const write = (line: string) => {
      const { event, reason } = JSON.parse(line)
      if (event === 'session-ended') ended.push(reason)
    }
    const log = pino({ level: 'info' }, { write })
    const server = new SwapServer({ memory: MIB, slabSize: MIB, log })
    onTestFinished(() => server.close())
    const uri = await server.listen(address())
    // An answer has a line for each of them.
    const sessions = []
    for (let i = 0; i < SESSIONS; i++)
      sessions.push(
        await SwapServerSession.open([uri], { client: 'x'.repeat(256), heartbeatInterval: 60_000 }),
      )
    const queries = Array.from({ length: QUERIES }, () => ({ query: {} }))
    const client = await muteClient(uri, [{ hello: { version: 1 } }, ...queries])
    onTestFinished(() => client.close())
    // It answers no heartbeat, either; another one could.
    await client.disconnected
    await eventually(() => ended.length > 0)
    const { sessions: left, controlRequests } = (await sessions[0]?.query()) ?? {}
    expect(left).toBe(SESSIONS)
    // Those that came while others waited are not answered, unless all were begun at once: that ends the connection.
    const flooded = ended[0]?.includes('does not receive the answers')
    expect(flooded || Number(controlRequests) < QUERIES).toBe(true)
    for (const session of sessions) await session.close()
  },
)
