import { UsageError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { SwapServer, SwapServerSession } from '../src/index.js'

/** Nothing listens there, so whatever is tried fails otherwise. */
const NOWHERE = ['shm:///nowhere']

describe('the times of a session', () => {
  it.each([
    ['heartbeatInterval', Number.NaN],
    ['heartbeatInterval', 0],
    ['heartbeatInterval', 2 ** 31],
    ['heartbeatTimeout', Number.NaN],
    ['heartbeatTimeout', -1],
    ['linger', Number.NaN],
    ['linger', -1],
    ['linger', 2 ** 31],
  ])('%s is not %d', async (name, value) => {
    const identity = { epoch: '', session: 1, token: new Uint8Array(16) }
    for (const attempt of [
      SwapServerSession.open(NOWHERE, { [name]: value }),
      SwapServerSession.resume(NOWHERE, identity, { [name]: value }),
    ])
      await expect(attempt).rejects.toThrow(
        expect.objectContaining({ name: UsageError.name, message: expect.stringContaining(name) }),
      )
  })

  it('may be as long as a timer runs, or longer', async () => {
    const times = {
      heartbeatInterval: Number.POSITIVE_INFINITY,
      heartbeatTimeout: Number.POSITIVE_INFINITY,
      linger: Number.POSITIVE_INFINITY,
    }
    await expect(SwapServerSession.open(NOWHERE, times)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  })
})

describe('the limits of a server', () => {
  const MIB = 2 ** 20
  it.each([
    ['memory', Number.NaN],
    ['slabSize', Number.NaN],
    ['sessionTimeout', Number.NaN],
    ['sessionTimeout', 0],
    ['maxLinger', Number.NaN],
    ['maxLinger', 2 ** 31],
    ['controlMemory', Number.NaN],
    ['maxSessions', Number.NaN],
    ['maxSessions', -1],
    ['maxDataConnections', 1.5],
    ['bandwidth', Number.NaN],
    ['bandwidth', -1],
  ])('%s is not %d', (name, value) => {
    expect(() => new SwapServer({ memory: MIB, slabSize: MIB, [name]: value })).toThrow(UsageError)
  })

  it.each([0, 32_768, 2 ** 32 - 1])('are those of %d sessions', async (maxSessions) => {
    const server = new SwapServer({ memory: MIB, slabSize: MIB, maxSessions })
    expect([server.maxSessions, server.controlMemory]).toEqual([maxSessions, maxSessions * 2 ** 17])
    await server.close()
  })

  it('may be none', () => {
    const server = new SwapServer({ memory: MIB, slabSize: MIB, maxLinger: Number.POSITIVE_INFINITY })
    expect(server.maxLingerMs).toBe(2 ** 31 - 1)
    return server.close()
  })
})
