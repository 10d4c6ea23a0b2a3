// A client that closes or leaves its session: nothing of it may stay open, whatever is under way or broken.
import { ConnectionId, VerbsError } from '@rdmakit/verbs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { ADDRESSES, dataPath, MIB } from '../fixture.js'

type Steps = Record<'resolve' | 'connect', (...all: unknown[]) => unknown>

describe.each(Object.entries(ADDRESSES))('a session over %s', (_, address) => {
  let server: SwapServer
  let session: SwapServerSession
  beforeEach(async () => {
    server = new SwapServer({ memory: MIB, slabSize: MIB })
    session = await SwapServerSession.open([await server.listen(address())], { linger: 60_000 })
  })
  afterEach(async () => {
    vi.restoreAllMocks()
    await session.close()
    await server.close()
  })

  const dataConnections = () => server.query('operator').sessionList?.[0]?.dataConnections

  it.each(['close', 'leave'] as const)('gives back all of a lost device at its %s', async (end) => {
    for (let i = 0; i < 2; i++) await dataPath(session)
    const closed = vi.spyOn(ConnectionId.prototype, 'close')
    vi.spyOn(ConnectionId.prototype, 'disconnect').mockImplementation(() => {
      throw new VerbsError('ENODEV', 'rdma_disconnect', 'connection', 'no such device')
    })
    await session[end]()
    // The data connections of both ends, and the control connection's.
    expect(new Set(closed.mock.contexts).size).toBeGreaterThanOrEqual(3)
    expect(session.over).toBeDefined()
  })

  it.each([
    ['closed', 'resolve'],
    ['left', 'resolve'],
    ['closed', 'connect'],
    ['left', 'connect'],
  ] as const)('that is %s makes no data connection that has got to %s', async (ended, step) => {
    const protectionDomain = session.context.allocateProtectionDomain()
    const sendQueue = session.context.createCompletionQueue({ entries: 16 })
    const end = () => (ended === 'closed' ? session.close() : session.leave())
    const ending = new Promise<void>((resolve, reject) => {
      const begin = () => void end().then(resolve, reject)
      const owner = (step === 'resolve' ? ConnectionId : ConnectionId.prototype) as unknown as Steps
      const original = owner[step]
      vi.spyOn(owner, step).mockImplementationOnce(function (this: unknown, ...all) {
        const made = original.apply(this, all)
        begin()
        return made
      })
    })
    const made = session.connectData(protectionDomain, { sendQueue })
    await expect(made).rejects.toMatchObject({
      code: 'ECANCELED',
      message: expect.stringMatching(/this side has ended/),
    })
    await ending
    await eventually(() => !dataConnections())
    expect(dataConnections() ?? 0).toBe(0)
  })

  it('makes no data connection when it is over', async () => {
    await session.leave()
    const protectionDomain = session.context.allocateProtectionDomain()
    const sendQueue = session.context.createCompletionQueue({ entries: 16 })
    const code = 'ECANCELED'
    await expect(session.connectData(protectionDomain, { sendQueue })).rejects.toMatchObject({ code })
  })
})
