// A tenant over shm that says it is in the middle of a copy into the server's memory, and never comes out of it: a
// container that is paused there, or one that means harm. What it costs is its own.
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { DEAD_KEY, holdMemory, sharedAreas } from '../../../../test/shm-hazard.js'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { ADDRESSES, dataPath, MIB } from '../fixture.js'

const SLABS = 64

let server: SwapServer
let good: SwapServerSession
let hostile: SwapServerSession

beforeEach(async () => {
  server = new SwapServer({ memory: 2 * SLABS * MIB, slabSize: MIB })
  const uri = await server.listen(ADDRESSES.shm())
  good = await SwapServerSession.open([uri])
  hostile = await SwapServerSession.open([uri])
})

afterEach(async () => {
  await good.close()
  await server.close()
})

it('a session whose client holds a dead key ends beside everybody else', async () => {
  const before = new Set(sharedAreas())
  await dataPath(hostile)
  const held = sharedAreas().filter((area) => !before.has(area))
  expect(held).toHaveLength(2)
  await hostile.allocate(SLABS)
  expect(server.store.free).toBe(SLABS)
  holdMemory(held, DEAD_KEY)
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  await hostile.close()
  await eventually(() => server.sessions === 1)
  expect(server.store.free).toBe(2 * SLABS)
  // The good tenant is answered while the server waits for the other one's peer: its queue pair is there still.
  expect((await good.allocate(1)).length).toBe(1)
  expect(sharedAreas()).toEqual(expect.arrayContaining(held))
  delay.disable()
  console.log(`the event loop stood still for ${(delay.max / 1e6).toFixed(0)} ms at most`)
  holdMemory(held, 0)
  await eventually(() => !sharedAreas().some((area) => held.includes(area)))
})
