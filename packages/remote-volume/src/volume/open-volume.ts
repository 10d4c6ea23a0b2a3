import { existsSync, rmSync } from 'node:fs'
import { formatSize } from '@rdmakit/operator-kit'
import type { VolumeEngine } from '../engine/volume-engine.js'
import { VolumeServer } from '../servers/volume-server.js'
import { placeSlabs } from '../slabs/placement.js'
import { checkRoom, commonSlabSize, openSession } from './server-fit.js'
import { Volume, type VolumeClass } from './volume.js'
import {
  type MakeEngine,
  raised,
  sayUnfenced,
  sessionOptions,
  settingsOf,
  type VolumeOptions,
} from './volume-options.js'
import { VolumeParts } from './volume-parts.js'

/**
 * Opens sessions, places every slab and makes the lanes: a page write never waits for JavaScript.
 * @param make the engine, with its front @param Kind the class that the volume is of
 * @throws VerbsError: a server cannot be reached; UsageError: servers that do not fit together;
 *   SwapServerError: a server refused, or ENOSPC: they hold too little
 */
export async function openVolume<
  Engine extends VolumeEngine,
  Front extends object,
  Made extends Volume<Engine> = Volume<Engine>,
>(
  given: VolumeOptions<Engine, Front>,
  make: MakeEngine<Engine, Front>,
  Kind: VolumeClass<Engine, Made> = Volume as VolumeClass<Engine, Made>,
): Promise<Made> {
  const options = raised(given)
  const progress = options.progress ?? (() => {})
  const servers: VolumeServer[] = []
  let engine: Engine | undefined
  let parts: VolumeParts<Engine> | undefined
  let volume: Made | undefined
  let newBackup: string | undefined
  try {
    for (const uris of options.servers) {
      progress(`connecting to ${uris.join(' or ')}`)
      const session = await openSession(uris, sessionOptions(options))
      servers.push(new VolumeServer(servers.length, uris, session))
    }
    sayUnfenced(servers, options)
    const slabSize = commonSlabSize(servers.map(({ session }) => session))
    await checkRoom(servers, options, slabSize)
    const context = (servers[0] as VolumeServer).session.context
    // The engine is to make the backup's file.
    const absent = given.backup === undefined || existsSync(given.backup.file) ? undefined : given.backup.file
    engine = make(settingsOf(given, slabSize))
    newBackup = absent
    parts = new VolumeParts(engine, servers, context, options)
    volume = new Kind(parts)
    parts.holdLoop()
    options.prepare?.(engine)
    options.keep?.(servers)
    if (options.thin !== true) await placeAll(parts, slabSize)
    await parts.openLanes()
    parts.start()
    return volume
  } catch (failure) {
    // While the engine still has it, and no other process can.
    if (newBackup !== undefined) rmSync(newBackup, { force: true })
    if (volume !== undefined) await volume.close()
    else {
      await Promise.all([engine?.close(), ...servers.map(({ session }) => session.close())])
      parts?.lanes.close()
    }
    throw failure
  }
}

/** Spreads the slabs by the power of two choices. */
async function placeAll({ state, slabs }: VolumeParts, slabSize: number): Promise<void> {
  const { engine, servers, replicas, progress } = state
  const places = placeSlabs(
    servers.map(({ room }) => room),
    engine.slabCount,
    replicas,
  )
  for (const [slab, place] of places.entries()) {
    const holders = place.map((index) => servers[index] as VolumeServer)
    slabs.table.map(
      slab,
      await Promise.all(holders.map(async (server) => ({ server, remote: await server.take() }))),
    )
    // In steps, so that a large volume shows its progress.
    if ((slab + 1) % 8 === 0 || slab + 1 === places.length)
      progress(
        `${formatSize((slab + 1) * slabSize)} of ${formatSize(places.length * slabSize)} allocated on ${servers.map(({ uri, slabs }) => `${uri}: ${slabs}`).join(', ')} slabs`,
      )
  }
}
