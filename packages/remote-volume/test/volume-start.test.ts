import { NO_TAKE_OVER, SwapServerSession } from '@rdmakit/swap-server'
import { type Context, VerbsError } from '@rdmakit/verbs'
import { expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../test/eventually.js'
import { VolumeServer } from '../src/servers/volume-server.js'
import { Volume } from '../src/volume/volume.js'
import { VolumeParts } from '../src/volume/volume-parts.js'
import { makeEngine } from './helpers/engine.js'
import { MIB } from './helpers/swap-servers.js'

/** A volume that is not started, on an engine of its own and one server. */
function volumeOn(session: object) {
  const engine = makeEngine({ size: MIB, slabSize: MIB })
  const server = new VolumeServer(0, ['iwarp://192.0.2.1:7471'], session as SwapServerSession)
  const context = { allocateProtectionDomain: () => ({ close: () => {} }) } as unknown as Context
  const options = { servers: [], size: MIB, lanes: 1, spares: 1, takeOver: NO_TAKE_OVER }
  return { engine, server, volume: new Volume(new VolumeParts(engine, [server], context, options)) }
}

const SESSION = {
  onServerRequest: () => {},
  meter: () => {},
  lost: new Promise(() => {}),
  close: async () => {},
}

// Taken in twice, its memory would be under two indexes.
it('a server that fails between a take-over and start() is called once', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  onTestFinished(() => void vi.useRealTimers().restoreAllMocks())
  const opened = vi
    .spyOn(SwapServerSession, 'open')
    .mockRejectedValue(new VerbsError('ECONNREFUSED', 'rdma_connect', 'the server', 'nobody is there'))
  const { engine, server, volume } = volumeOn(SESSION)
  engine.failServer(0, 'it failed before the device was there')

  volume.start()
  await vi.advanceTimersByTimeAsync(3_000)
  expect(server.failure).toBe('it failed at the start')
  expect(opened).toHaveBeenCalledOnce()
  await volume.close()
})

// A hand-over waits for it, and the users of the device for that.
it('a volume that comes to rest does not wait for a server that it has asked for memory', async () => {
  let asked = 0
  const allocate = (_: number, { signal }: { signal?: AbortSignal } = {}) =>
    new Promise((_, reject) => {
      asked++
      signal?.addEventListener('abort', () => reject(signal.reason))
    })
  const { volume } = volumeOn({ ...SESSION, freeSlabs: 1, allocate })
  volume.start()
  await eventually(() => asked === 1)
  await volume.quiesce()
  await volume.close()
  expect(asked).toBe(1)
})
