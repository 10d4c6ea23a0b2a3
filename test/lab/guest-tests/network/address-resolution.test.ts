import { ConnectionId } from '@rdmakit/verbs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { until } from '../../base/until.js'

const shell = new LocalShell()
const neighbour = 'rdma://10.77.0.9:7471'
const nobody = 'rdma://10.77.0.10:7471'

// The other end of rxe0's wire as a host of its own, in a network namespace: unlike this guest's own addresses it has
// to be asked for (ARP), and it answers while the kernel is still asking.
describe('address resolution on rdma_cm', () => {
  const linkIs = (state: string) =>
    until(`rxe0 is ${state}`, 30_000, async () =>
      (await shell.run('rdma link show rxe0/1')).includes(`state ${state}`),
    )

  beforeAll(async () => {
    await shell.run(
      'ip netns add neighbour && ip link set veth-peer netns neighbour && ip -n neighbour link set veth-peer up && ' +
        'ip -n neighbour address add 10.77.0.9/24 dev veth-peer',
    )
    await linkIs('ACTIVE')
  })

  afterAll(async () => {
    await shell.run(
      'ip -n neighbour link set veth-peer netns 1 && ip link set veth-peer up && ip netns delete neighbour',
    )
    await linkIs('ACTIVE')
  })

  // The kernel is not told of an answer that comes so soon, and looks again when its time is over only.
  test('finds a neighbour that answers at once long before the deadline', async () => {
    for (let round = 0; round < 5; round++) {
      await shell.run('ip neigh flush dev veth')
      const start = performance.now()
      const id = await ConnectionId.resolve(neighbour, { timeout: 60_000 })
      expect(performance.now() - start).toBeLessThan(15_000)
      expect(id.context.description).toMatch(/rxe0/)
      id.close()
    }
  })

  test('finds a neighbour that comes later', async () => {
    await shell.run('ip -n neighbour address del 10.77.0.9/24 dev veth-peer; ip neigh flush dev veth')
    const resolving = ConnectionId.resolve(neighbour, { timeout: 60_000 })
    // It has been asked and has not answered.
    await until('it is asked', 60_000, async () =>
      /INCOMPLETE/.test(await shell.run('ip neigh show 10.77.0.9')),
    )
    await shell.run('ip -n neighbour address add 10.77.0.9/24 dev veth-peer')
    const id = await resolving
    id.close()
  })

  test('does not give up on an address that nobody has before its deadline', async () => {
    const start = performance.now()
    await expect(ConnectionId.resolve(nobody, { timeout: 1_500 })).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    })
    expect(performance.now() - start).toBeGreaterThan(1_400)
  })

  test('can be called off while it asks', async () => {
    await shell.run('ip neigh flush dev veth')
    const aborting = new AbortController()
    const resolving = ConnectionId.resolve(nobody, { timeout: 60_000, signal: aborting.signal })
    resolving.catch(() => {}) // Looked at below.
    await until('it is asked', 60_000, async () =>
      /INCOMPLETE/.test(await shell.run('ip neigh show 10.77.0.10')),
    )
    aborting.abort()
    await expect(resolving).rejects.toThrow(/abort/i)
  })
})
