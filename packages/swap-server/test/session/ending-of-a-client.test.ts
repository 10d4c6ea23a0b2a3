// A client that closes or leaves its session: nothing of it may stay open, whatever is under way or broken.
import { ConnectionId, VerbsError } from '@rdmakit/verbs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { ADDRESSES, dataPath, MIB } from '../fixture.js'

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
})
