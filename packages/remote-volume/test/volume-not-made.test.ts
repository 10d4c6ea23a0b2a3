// A volume that cannot be made gives back what it had: its maps, which another engine may then open, and its sessions.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { eventually } from '../../../test/eventually.js'
import { openVolume, takeOverVolume, Volume } from '../src/index.js'
import { makeEngine } from './helpers/engine.js'
import { MIB, serve } from './helpers/swap-servers.js'

/** Of a package with a front, whose part of a volume cannot be had. */
class Unmakable extends Volume {
  constructor(parts: object) {
    super(parts)
    throw new Error('there is no front')
  }
}

/** A server, and a volume on it whose maps are files. */
async function setUp() {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-test-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const { server, uri } = await serve(8)
  const engine = { pageMap: join(folder, 'pages.map'), slabMap: join(folder, 'slabs.map') }
  const options = { servers: [[uri]], size: 4 * MIB, lanes: 1, linger: 600_000, engine }
  return { server, options }
}

it('a volume whose class throws is not opened, and nothing of it stays', async () => {
  const { server, options } = await setUp()
  await expect(openVolume(options, makeEngine, Unmakable)).rejects.toThrow('there is no front')
  await eventually(() => server.sessions === 0)
  // EBUSY, if the engine had them still.
  await using volume = await openVolume(options, makeEngine)
  expect(volume.slabs.mapped).toBe(4)
  expect(server.store.free).toBe(4)
})

it('a take-over whose class throws leaves the maps and the sessions to the next', async () => {
  const { server, options } = await setUp()
  const first = await openVolume(options, makeEngine)
  const [{ index, uris, identity }] = first.servers as [(typeof first.servers)[0]]
  if (identity === undefined) throw new Error('there is no session')
  const kept = {
    size: options.size,
    slabSize: MIB,
    replicas: 1,
    servers: [{ index, uris, identity, linger: options.linger }],
  }
  await first.leave()
  await expect(takeOverVolume(options, kept, makeEngine, Unmakable)).rejects.toThrow('there is no front')
  await eventually(() => server.lingeringSessions === 1)
  const { volume, adopted } = await takeOverVolume(options, kept, makeEngine)
  expect(adopted).toMatchObject({ degraded: 0, lost: 0 })
  expect(volume.slabs.mapped).toBe(4)
  await volume.close()
  await eventually(() => server.sessions === 0)
  expect(server.store.free).toBe(8)
})
