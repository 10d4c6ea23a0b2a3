import { ConnectionId, type Context, Listener, openDevice, type QueuePair } from '@rdmakit/verbs'
import { within } from '@rdmakit/verbs/internal'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { until } from '../../base/until.js'

const shell = new LocalShell()
const KEY = 0x11111111
const here = 'rdma://10.77.0.1:0'

// A wire that keeps what it is given, as behind a switch that has stopped this port. Soft-RoCE destroys a queue pair
// when its packets are gone, or after 50 s.
describe('a link that takes no packets', () => {
  let context: Context

  beforeAll(async () => {
    // No host has this address, and the kernel sends no request for it.
    await shell.run('ip neigh replace 10.77.0.9 lladdr 52:54:00:00:77:99 dev veth nud permanent')
    context = await openDevice('rxe0')
  })

  afterAll(async () => {
    context.close()
    await shell.run('ip neigh del 10.77.0.9 dev veth')
  })

  /** A queue pair with a packet on its way, for as long as the wire keeps it. */
  const stuckQueuePair = async (): Promise<QueuePair> => {
    const protectionDomain = context.allocateProtectionDomain()
    const sendQueue = context.createCompletionQueue({ entries: 4 })
    const region = await protectionDomain.allocateMemoryRegion(4096)
    const queuePair = protectionDomain.createQueuePair({ type: 'ud', sendQueue })
    queuePair.modify({ state: 'init', portNumber: 1, partitionKeyIndex: 0, queueKey: KEY })
    queuePair.modify({ state: 'rtr' })
    queuePair.modify({ state: 'rts', sendPacketSequence: 1 })
    const gid = (address: string) =>
      Uint8Array.from([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ...address.split('.').map(Number)])
    const source = context
      .queryGids()
      .find((entry) => Buffer.compare(entry.gid, gid('10.77.0.1')) === 0 && entry.type === 'RoCE v2')
    if (source === undefined) throw new Error('rxe0 has no GID of 10.77.0.1')
    const addressHandle = protectionDomain.createAddressHandle({
      gid: gid('10.77.0.9'),
      sourceGidIndex: source.index,
    })
    // More than the wire takes at first.
    for (let sent = 0; sent < 20; sent++) {
      queuePair.postSend({
        opcode: 'send',
        data: [{ region, length: 1000 }],
        destination: { addressHandle, queuePairNumber: 77, queueKey: KEY },
      })
      await until('it is sent', 60_000, () => sendQueue.poll(1).length === 1)
    }
    return queuePair
  }

  test('keeps nobody who closes a queue pair', async () => {
    await shell.run('modprobe sch_tbf && tc qdisc replace dev veth root tbf rate 8bit burst 10kb limit 1mb')
    try {
      const queuePairs = [await stuckQueuePair(), await stuckQueuePair(), await stuckQueuePair()]
      const start = performance.now()
      for (const queuePair of queuePairs) queuePair.close()
      // 150 s, one after another, where the caller waits for the device.
      expect(performance.now() - start).toBeLessThan(5_000)
      expect(queuePairs.map(({ closed, destroyed }) => [closed, destroyed])).toEqual(
        Array(3).fill([true, false]),
      )
      // And the rest of this process goes on: a connection comes and goes, to this host itself.
      using listener = await Listener.listen(here, async ({ id }) => {
        const protectionDomain = id.context.allocateProtectionDomain()
        id.createQueuePair(protectionDomain, { sendQueue: id.context.createCompletionQueue({ entries: 4 }) })
        await id.accept()
        await id.disconnected
        protectionDomain.close()
        id.close()
      })
      const id = await ConnectionId.resolve(listener.uri)
      const protectionDomain = id.context.allocateProtectionDomain()
      id.createQueuePair(protectionDomain, { sendQueue: id.context.createCompletionQueue({ entries: 4 }) })
      await id.connect()
      expect(queuePairs.some(({ destroyed }) => destroyed)).toBe(false)
      id.disconnect()
      await within(id.disconnected, 10_000, () => new Error('the connection does not end'))
      id.close()
      await until('the connection is gone, though others are not', 20_000, () => id.destroyed)
      protectionDomain.close()
      expect(queuePairs.some(({ destroyed }) => destroyed)).toBe(false)
      await shell.run('tc qdisc del dev veth root')
      await until('the device is done', 20_000, () => queuePairs.every(({ destroyed }) => destroyed))
    } finally {
      await shell.run('tc qdisc del dev veth root 2>/dev/null; true')
    }
  })
})
