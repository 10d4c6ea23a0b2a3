import { describe, expect, it } from 'vitest'
import { SwapServer, Tenants } from '../../src/index.js'
import { OperatorFile } from '../tenants/tenants-fixture.js'

import {
  address,
  challenged,
  ends,
  type Finished,
  file,
  key,
  MIB,
  prod,
  serveEach,
  session,
  stranger,
} from './keys-fixture.js'

describe('connections that do not say who they are', () => {
  serveEach()

  it('have so many places, and the oldest makes room', async () => {
    const few = new SwapServer({
      memory: MIB,
      slabSize: MIB,
      tenants: Tenants.load(file.path),
      greetingTimeout: 60_000,
      descriptors: { limit: 1024, open: 40 },
    })
    ends.push(() => few.close())
    const at = await few.listen(address())
    const { greetings } = few.budget
    const silent = []
    for (let i = 0; i < greetings; i++) silent.push(await stranger(at))
    expect(silent.some(({ ended }) => ended())).toBe(false)
    await session({ tenant: 'prod', key }, at)
    await silent[0]?.ends()
    expect(silent.filter(({ ended }) => ended())).toHaveLength(1)
  })
})

// They wait for the deadline side by side.
describe.concurrent('connections that do not say who they are', () => {
  /** Time enough to say it, on any machine. */
  const GREETING_MS = 1_500

  async function hasty(over: Finished) {
    const own = new OperatorFile({ tenants: [prod(key)] })
    over(() => own[Symbol.dispose]())
    const server = new SwapServer({
      memory: MIB,
      slabSize: MIB,
      tenants: Tenants.load(own.path),
      greetingTimeout: GREETING_MS,
    })
    over(() => server.close())
    return { server, uri: await server.listen(address()) }
  }

  it.for([
    ['are silent', (at: string, over: Finished) => stranger(at, over)],
    [
      'do not answer the challenge',
      (at: string, over: Finished) => challenged('prod', key.id, undefined, at, over),
    ],
  ] as const)('that %s end at the deadline', async ([, connect], { onTestFinished: over }) => {
    const { server, uri } = await hasty(over)
    const client = await connect(uri, over)
    expect(client.ended()).toBe(false)
    await client.ends()
    expect(server.sessions).toBe(0)
  })

  it('do not end with a session that was opened in time', async ({ onTestFinished: over }) => {
    const { uri } = await hasty(over)
    const client = await session({ tenant: 'prod', key }, uri, over)
    // It came later, so the session's time is over, too.
    await (await stranger(uri, over)).ends()
    expect((await client.query()).sessions).toBe(1)
  })
})
