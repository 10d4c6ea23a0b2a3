import { afterEach, describe, expect, it } from 'vitest'
import { type ConnectionState, RingConnection, type RingServerOptions } from '../../src/index.js'
import { pair as connected } from '../helpers/pair.js'
import { follow, until } from '../helpers/states.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const SESSION = 'c0ffee0000000001'
const open: { close(options?: { drain?: boolean }): Promise<void> }[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close({ drain: false })))
})

describe.each(PROVIDERS)('over %s', (provider) => {
  async function pair(server: Partial<RingServerOptions> = {}, client = {}) {
    const ends = await connected(listenUri(provider), server, client)
    open.push({ close: async () => ends[Symbol.asyncDispose]() })
    return ends
  }

  describe('the states of a connection', () => {
    it('go open, draining, closed when it is closed in good order, at both ends', async () => {
      const { a, b } = await pair()
      const seen = [follow(a.states), follow(b.states)]
      await a.close()
      await b.closed
      for (const one of seen) expect(one).toEqual(['open 0', 'draining 0', 'closed 0'])
    })

    it('are replayed, the last one too', async () => {
      const { a } = await pair()
      expect(follow(a.states)).toEqual(['open 0'])
      const closing = a.close()
      expect(follow(a.states)).toEqual(['draining 0'])
      await closing
      let completed = false
      const last: ConnectionState[] = []
      a.states.subscribe({ next: (state) => last.push(state), complete: () => (completed = true) })
      expect(last).toEqual([{ state: 'closed', epoch: 0 }])
      expect(completed).toBe(true)
    })

    it('end with lost and the reason that closed has', async () => {
      const { a, b } = await pair()
      const seen = follow(b.states)
      await a.close({ drain: false })
      const { reason } = await until(b.states, 'lost')
      expect(reason).toMatchObject({ code: 'ECONNRESET' })
      expect(reason).toBe(await b.closed)
      expect(seen).toEqual(['open 0', 'lost 0'])
      expect(follow(a.states)).toEqual(['closed 0'])
    })

    it('have the last one when closed has settled and requests have failed', async () => {
      const { a, b } = await pair()
      b.handle(() => new Promise(() => {}))
      const request = a.request(new Uint8Array(1)).catch(() => follow(a.states))
      await b.close({ drain: false })
      expect(await request).toEqual(['lost 0'])
    })
  })

  describe('a session', () => {
    it('and its epoch are seen at both ends and in the states', async () => {
      const session = { id: SESSION, epoch: 7 }
      const { a, b } = await pair({}, { session })
      expect([a.session, b.session]).toEqual([session, session])
      expect([...follow(a.states), ...follow(b.states)]).toEqual(['open 7', 'open 7'])
    })

    it('is often none', async () => {
      const { a, b } = await pair()
      expect([a.session, b.session]).toEqual([undefined, undefined])
    })
  })
})

describe('a session that is none', () => {
  it.each([
    ['too short', { id: 'abc', epoch: 1 }],
    ['nothing', { id: '0000000000000000', epoch: 1 }],
    ['no number', { id: 'xyzxyzxyzxyzxyzx', epoch: 1 }],
    ['of no epoch', { id: SESSION, epoch: 0 }],
    ['of too high an epoch', { id: SESSION, epoch: 2 ** 32 }],
  ])('is refused: %s', async (_, session) => {
    await expect(RingConnection.connect('iwarp://127.0.0.1:1', { session })).rejects.toThrow(/session\./)
  })
})
