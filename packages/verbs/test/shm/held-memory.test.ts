// A peer over shm that says it is in the middle of a copy into this end's memory, and does not come out of it.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { DEAD_KEY, holdMemory, sharedAreas } from '../../../../test/shm-hazard.js'
import { ConnectionId, Listener, type ProtectionDomain } from '../../src/index.js'

let held: number[]
let listener: Listener
let ends: ConnectionId[]
let domains: ProtectionDomain[]

beforeEach(async () => {
  ends = []
  domains = []
  const createQueuePair = (id: ConnectionId) => {
    const domain = id.context.allocateProtectionDomain()
    ends.push(id)
    domains.push(domain)
    id.createQueuePair(domain, { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
  }
  listener = await Listener.listen(`shm:///tmp/rdmakit-held-${process.pid}.sock`, async ({ id }) => {
    createQueuePair(id)
    await id.accept()
  })
  const id = await ConnectionId.resolve(listener.uri)
  createQueuePair(id)
  await id.connect()
  held = sharedAreas()
  expect(held).toHaveLength(2)
})

afterEach(async () => {
  holdMemory(held, 0)
  for (const id of ends) id.close()
  listener.close()
  await eventually(() => ends.every(({ destroyed }) => destroyed))
})

it("closing a region over the caller's memory does not wait for the peer, nor is it destroyed before", async () => {
  const regions = domains.map((domain) => domain.registerMemoryRegion(new ArrayBuffer(4096)))
  holdMemory(held, DEAD_KEY)
  for (const region of regions) region.close()
  expect(regions.map(({ destroyed }) => destroyed)).toEqual([false, false])
  holdMemory(held, 0)
  await eventually(() => regions.every(({ destroyed }) => destroyed))
})

it('closing a connection does not wait for the peer, nor is it destroyed before', async () => {
  holdMemory(held, DEAD_KEY)
  for (const id of ends) id.close()
  expect(ends.map(({ destroyed }) => destroyed)).toEqual([false, false])
  holdMemory(held, 0)
  await eventually(() => ends.every(({ destroyed }) => destroyed))
})
