// Memory of a server that a volume has given up: operations that began before may still write to it, so no other
// client may have it until all lanes have passed that point.

import { VolumeServer } from '@rdmakit/remote-volume/internal'
import { deferred } from '@rdmakit/verbs/internal'
import { expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import { Client, MIB, TRIM, WRITE } from '../helpers/fixture.js'
import { openVolume } from '../helpers/volumes.js'

/** Lanes that come past no point before `go` is called. */
function lanesThatStand() {
  const synchronize = BlockEngine.prototype.synchronize
  const gate = deferred<void>()
  let standing = 0
  const waiting = vi.spyOn(BlockEngine.prototype, 'synchronize').mockImplementation(async function (
    this: BlockEngine,
  ) {
    standing++
    await gate.promise
    await synchronize.call(this)
    standing--
  })
  const giveBack = VolumeServer.prototype.giveBack
  const givenBack = vi.spyOn(VolumeServer.prototype, 'giveBack').mockImplementation(async function (
    this: VolumeServer,
    slab,
  ) {
    expect(standing).toBe(0)
    await giveBack.call(this, slab)
  })
  onTestFinished(() => void vi.restoreAllMocks())
  return { waiting, givenBack, go: gate.resolve }
}

/** Whatever is ready to happen in this process has happened. */
async function quiet(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve))
}

it('the place that a slab has moved from is not given back while a lane may write to it', async () => {
  const [full, other] = [await serve(8, undefined, { lending: { interval: 50 } }), await serve(8)]
  await using volume = await openVolume([full.uri, other.uri], { size: 4 * MIB, spares: 0 })
  const { waiting, givenBack, go } = lanesThatStand()
  const held = full.server.lending.hold({ bytes: 8 * MIB, duration: 60_000, patience: 30_000 })
  await eventually(() => waiting.mock.calls.length > 0)
  await quiet()
  expect(givenBack).not.toHaveBeenCalled()
  go()
  await eventually(() => givenBack.mock.calls.length > 0 && volume.migration.moved > 0)
  for (const { type } of givenBack.mock.settledResults) expect(type).not.toBe('rejected')
  await full.server.lending.hold({ bytes: 0, duration: 0, patience: 0 })
  await held
})

it('the memory of a slab that was discarded is not given back while a lane may write to it', async () => {
  const { uri } = await serve(12)
  await using volume = await openVolume([uri], { size: 16 * MIB, thin: true, spares: 0 })
  const client = new Client(volume.engine.attachSocketpair(0))
  expect((await client.request(WRITE, 0, 4096, Buffer.alloc(4096, 7)))?.error).toBe(0)
  await eventually(() => volume.slabs.mapped === 1 && volume.thin?.spares === 8)
  const { waiting, givenBack, go } = lanesThatStand()
  expect((await client.request(TRIM, 0, MIB))?.error).toBe(0)
  await eventually(() => waiting.mock.calls.length > 0)
  await quiet()
  expect(givenBack).not.toHaveBeenCalled()
  go()
  await eventually(() => givenBack.mock.calls.length > 0)
  client.close()
})

it('a place that could not be filled is not given back while a lane may write to it', async () => {
  const servers = [await serve(8), await serve(8), await serve(8)]
  await using volume = await openVolume(
    servers.map(({ uri }) => uri),
    { size: 4 * MIB, replicas: 2, spares: 0 },
  )
  const { waiting, givenBack, go } = lanesThatStand()
  vi.spyOn(BlockEngine.prototype, 'refill').mockRejectedValue(new Error('a copy failed'))
  volume.engine.failServer(0, 'the test said so')
  await eventually(() => waiting.mock.calls.length > 0)
  await quiet()
  expect(givenBack).not.toHaveBeenCalled()
  go()
  await eventually(() => givenBack.mock.calls.length > 0)
})
