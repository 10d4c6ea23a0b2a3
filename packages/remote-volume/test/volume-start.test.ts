import { NO_TAKE_OVER, SwapServerSession } from '@rdmakit/swap-server'
import { type Context, VerbsError } from '@rdmakit/verbs'
import { expect, it, onTestFinished, vi } from 'vitest'
import { VolumeServer } from '../src/servers/volume-server.js'
import { Volume } from '../src/volume/volume.js'
import { VolumeParts } from '../src/volume/volume-parts.js'
import { makeEngine } from './helpers/engine.js'
import { MIB } from './helpers/swap-servers.js'

// Taken in twice, its memory would be under two indexes.
it('a server that fails between a take-over and start() is called once', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  onTestFinished(() => void vi.useRealTimers().restoreAllMocks())
  const opened = vi
    .spyOn(SwapServerSession, 'open')
    .mockRejectedValue(new VerbsError('ECONNREFUSED', 'rdma_connect', 'the server', 'nobody is there'))
  const session = {
    onServerRequest: () => {},
    meter: () => {},
    lost: new Promise(() => {}),
    close: async () => {},
  } as unknown as SwapServerSession
  const engine = makeEngine({ size: MIB, slabSize: MIB })
  const server = new VolumeServer(0, ['iwarp://192.0.2.1:7471'], session)
  const context = { allocateProtectionDomain: () => ({ close: () => {} }) } as unknown as Context
  const options = { servers: [], size: MIB, lanes: 1, takeOver: NO_TAKE_OVER }
  const volume = new Volume(new VolumeParts(engine, [server], context, options))
  engine.failServer(0, 'it failed before the device was there')

  volume.start()
  await vi.advanceTimersByTimeAsync(3_000)
  expect(server.failure).toBe('it failed at the start')
  expect(opened).toHaveBeenCalledOnce()
  await volume.close()
})
