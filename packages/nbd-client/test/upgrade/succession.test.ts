import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import type { AttachOptions } from '../../src/attach/attach-options.js'
import { successionOf } from '../../src/attach/succession.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'
import { openVolume } from '../helpers/volumes.js'

const SIZE = 4 * MIB

function optionsFor(uri: string): AttachOptions {
  return {
    servers: [[uri]],
    size: SIZE,
    connections: 1,
    operationTimeout: 4,
    replicas: 1,
    thin: false,
    acknowledge: 'all',
    backup: undefined,
    readAhead: 0,
    refillRate: 0,
    checksums: true,
    compress: 'none',
    access: {},
    linger: 60,
    reconnect: 60,
    signal: new AbortController().signal,
    device: undefined,
    pin: false,
    swap: false,
    swapPriority: undefined,
    metrics: undefined,
  }
}

// The kernel's requests come as soon as it has sockets, which it must have before the volume is started.
it('a request that comes before the volume is started waits for its server', async () => {
  const { uri } = await serve(8)
  const folder = StateFolder.open(join(temporaryFolder(), 'state'))
  onTestFinished(() => folder.close())
  const keeper = new VolumeKeeper(folder, { size: SIZE, replicas: 1 })
  const before = await openVolume([uri], { size: SIZE, ...keeper.options(60_000) })
  const first = new Client(before.engine.attachSocketpair(0))
  expect((await first.request(WRITE, 0, 4096, Buffer.alloc(4096, 7)))?.error).toBe(0)
  first.close()
  await before.leave()

  const device = { front: 'nbd', index: 0, identifier: 'rdmakit-test', connections: 1 } as const
  await using volume = await successionOf(optionsFor(uri), folder, device).takeUp()
  const client = new Client(volume.engine.attachSocketpair(0))
  volume.engine.failServer(0, 'the test said so')
  let answered = false
  const reading = client.request(READ, 0, 4096).finally(() => {
    answered = true
  })
  await eventually(() => answered || volume.engine.statistics().lanes[0]?.inFlight === 1)
  volume.start()
  const read = await reading
  expect(read?.error).toBe(0)
  expect(read?.data).toEqual(Buffer.alloc(4096, 7))
  await eventually(() => volume.slabs.mapped === 4)
  client.close()
})
