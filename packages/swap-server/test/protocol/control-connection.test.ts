// The server's limits for a control connection, for any peer.
import { RingConnection } from '@rdmakit/ring-transport'
import { expect, it, onTestFinished } from 'vitest'
import { SwapServer } from '../../src/index.js'
import { ADDRESSES, MIB } from '../fixture.js'

it.each(Object.entries(ADDRESSES))('has small rings and no transfers, over %s', async (_, address) => {
  const server = new SwapServer({ memory: MIB, slabSize: MIB })
  onTestFinished(() => server.close())
  const uri = await server.listen(address())
  const connection = await RingConnection.connect(uri)
  onTestFinished(() => connection.close({ drain: false }))
  // 16 KiB, of which a message has half.
  expect(connection.maxMessageLength).toBeLessThanOrEqual(8192)
  await expect(connection.transmit(new Uint8Array(100_000))).rejects.toThrow('EMSGSIZE')
  await expect(RingConnection.connect(uri, { capacity: 2 * MIB })).rejects.toThrow('EMSGSIZE')
})
