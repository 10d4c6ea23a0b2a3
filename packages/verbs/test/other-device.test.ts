// Objects of devices of different kinds, which belong to different providers, are refused together: each would take the
// other's memory for objects of its own. A tenth of a second.
import { expect, it } from 'vitest'
import { ConnectionId, openDevice } from '../src/index.js'

const refused = () =>
  expect.objectContaining({ code: 'EINVAL', message: expect.stringMatching(/is of another kind of device/) })

it('objects of another kind of device are refused', async () => {
  using here = openDevice('iwarp0', 'iwarp')
  using there = openDevice('shm0', 'shm')
  const domain = here.allocateProtectionDomain()
  const sendQueue = here.createCompletionQueue({ entries: 4 })
  const otherDomain = there.allocateProtectionDomain()
  const otherQueue = there.createCompletionQueue({ entries: 4 })
  const channel = there.createCompletionChannel()
  const region = await domain.allocateMemoryRegion(4096, ['remote-read'])
  const id = await ConnectionId.resolve('iwarp://127.0.0.1:1')
  for (const use of [
    () => here.createCompletionQueue({ entries: 4, channel }),
    () => id.createQueuePair(domain, { sendQueue: otherQueue }),
    () => id.createQueuePair(domain, { sendQueue, receiveQueue: otherQueue }),
    () => region.reregister({ access: [], protectionDomain: otherDomain }),
  ])
    expect(use).toThrow(refused())
  expect(id.createQueuePair(domain, { sendQueue }).number).toBeGreaterThan(0)
  id.close()
})
