import { statSync } from 'node:fs'
import { ConfigurationError } from '@rdmakit/swap-server'
import { type Context, openDevice } from '@rdmakit/verbs'
import type { VolumeEngine } from '../engine/volume-engine.js'
import { askWhetherFenced } from '../volume/ask-fenced.js'
import { Volume, type VolumeClass } from '../volume/volume.js'
import {
  type MakeEngine,
  NothingLeftError,
  raised,
  sayUnfenced,
  sessionOptions,
  settingsOf,
  type VolumeOptions,
} from '../volume/volume-options.js'
import { VolumeParts } from '../volume/volume-parts.js'
import { type Adopted, adoptSlabs, moveToIncarnations, renumber, serversOf } from './adopt-slabs.js'
import type { KeptVolume } from './kept-volume.js'
import { backedUp, takeSessions } from './take-sessions.js'

/**
 * Goes on with the volume of a process that has ended, or {@link Volume.leave left} it: its page map and slab map are in
 * `options.engine`, its servers in `kept`. Servers that do not give their session back have failed. Repair
 * waits for {@link Volume.start}.
 * @param make the engine, with its front @param Kind the class that the volume is of
 * @throws FencedError: another process has the volume; Error when no server gives its session back and there is no backup;
 *   EBUSY: another process has the maps; ConfigurationError: they are not there, of another volume, or damaged
 */
export async function takeOverVolume<
  Engine extends VolumeEngine,
  Front extends object,
  Made extends Volume<Engine> = Volume<Engine>,
>(
  given: VolumeOptions<Engine, Front>,
  kept: KeptVolume,
  make: MakeEngine<Engine, Front>,
  Kind: VolumeClass<Engine, Made> = Volume as VolumeClass<Engine, Made>,
): Promise<{ volume: Made; adopted: Adopted }> {
  const { progress = () => {} } = given
  const { size, replicas, thin = false } = kept
  const engine = onMaps(given.engine, () => make(settingsOf({ ...given, size, thin }, kept.slabSize)))
  let volume: Made | undefined
  let parts: VolumeParts<Engine> | undefined
  let resumed: Awaited<ReturnType<typeof takeSessions>>['resumed'] = []
  try {
    given.prepare?.(engine)
    const options = raised(given)
    const found = await takeSessions(
      engine,
      kept.servers,
      sessionOptions(options),
      backedUp(options, engine),
      progress,
    )
    resumed = found.resumed
    const taken = renumber(engine, found)
    const up = new Set(taken.resumed.flatMap(({ kept: { uris } }) => uris))
    for (const { kept: server, reason } of taken.gone) {
      engine.failServer(server.index, reason)
      // An earlier incarnation of a server that is back is not missed.
      if (!server.uris.some((uri) => up.has(uri))) progress(`lost ${server.uris.join(' or ')}: ${reason}`)
    }
    const context = taken.resumed[0]?.session.context ?? contextOf(options, kept)
    const servers = serversOf(taken, engine.failedServers())
    sayUnfenced(servers, options)
    parts = new VolumeParts(engine, servers, context, { ...options, size, replicas, thin })
    volume = new Kind(parts)
    parts.holdLoop()
    if (taken !== found) options.keep?.(servers)
    moveToIncarnations(engine, taken)
    const adopted = adoptSlabs(engine, parts.slabs.table, servers, taken, thin)
    volume.thin?.lookAtAll()
    for (const [server, orphans] of adopted.orphans)
      if (thin) server.keep(orphans)
      // A server that cannot do it now is about to fail, and its session to end.
      else await server.session.free(orphans).catch(() => {})
    await parts.openLanes()
    return { volume, adopted }
  } catch (failure) {
    if (volume === undefined || parts === undefined) {
      await Promise.all([engine.close(), ...resumed.map(({ session }) => session.leave())])
      parts?.lanes.close()
      throw failure
    }
    await volume.leave()
    // A process that comes behind this one takes its sessions, which looks like servers that are gone.
    throw (await askWhetherFenced(parts.state.servers, parts.state.options)) ?? failure
  }
}

/**
 * Makes the engine of a volume that is to be taken over. An engine makes maps that it does not find, and pages that were
 * written would read as zeros by those.
 * @throws ConfigurationError: a map is not there, or not of this volume
 */
function onMaps<Engine>(maps: VolumeOptions['engine'], make: () => Engine): Engine {
  for (const file of [maps?.pageMap, maps?.slabMap]) {
    if (file === undefined) continue
    if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0) continue
    throw new ConfigurationError(
      `${file} is missing or empty: without it the state of the volume's pages is unknown; detach its device, if it has one, and remove the folder's files`,
    )
  }
  try {
    return make()
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code !== 'EINVAL') throw failure
    throw new ConfigurationError((failure as Error).message)
  }
}

/** The device of a volume of which only the backup is left: servers that come back are reached through it. */
function contextOf({ backup }: VolumeOptions, { context }: KeptVolume): Context {
  if (backup === undefined || context === undefined)
    throw new NothingLeftError('no server has the session any more: nothing of the volume is left')
  return openDevice(context.name, context.provider)
}
