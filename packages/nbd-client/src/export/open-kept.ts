import { NothingLeftError, resyncReplicas } from '@rdmakit/remote-volume'
import { UsageError } from '@rdmakit/verbs'
import { Volume } from '../engine/block-volume.js'
import { withPageSocket } from '../engine/page-socket.js'
import { say } from '../report/log.js'
import { sayAdopted } from '../report/volume-messages.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import type { KeptVolume } from '../upgrade/volume-json.js'
import { VolumeKeeper } from '../upgrade/volume-keeper.js'
import { type Serving, volumeOptions } from './serve-options.js'

/** A new volume that the folder keeps. */
export async function openKept(options: Serving, folder: StateFolder, boot: string): Promise<Volume> {
  const keeper = new VolumeKeeper(folder, options)
  const { engine, ...keeping } = keeper.options((options.linger ?? 0) * 1000, options.backup)
  let volume: Volume | undefined
  try {
    volume = await Volume.open({ ...volumeOptions(options, engine), ...keeping })
    keeper.served(boot)
    return volume
  } catch (failure) {
    await volume?.close()
    folder.abandon()
    throw failure
  }
}

/** The volume of a process that has ended. */
export async function takeUp(
  options: Serving,
  folder: StateFolder,
  kept: KeptVolume,
  boot: string,
): Promise<Volume> {
  for (const what of ['size', 'replicas'] as const)
    if (kept[what] !== options[what])
      throw new UsageError(
        `${folder.path} belongs to a volume with --${what} ${kept[what]}; restore the old value, or remove the folder's files to start with an empty volume`,
      )
  if ((kept.thin ?? false) !== options.thin)
    throw new UsageError(
      `${folder.path} belongs to a volume ${kept.thin ? 'with' : 'without'} --thin; restore the old option, or remove the folder's files to start with an empty volume`,
    )
  say(`continuing with the volume in ${folder.path}`)
  const keeper = new VolumeKeeper(folder, kept, kept)
  const { engine, ...keeping } = keeper.options((options.linger ?? 0) * 1000, options.backup)
  const resync = kept.replicas > 1 || options.backup !== undefined
  let taken: Awaited<ReturnType<typeof Volume.takeOver>>
  try {
    taken = await Volume.takeOver({ ...volumeOptions(options, { ...engine, resync }), ...keeping }, kept)
  } catch (failure) {
    if (!(failure instanceof NothingLeftError)) throw failure
    throw new Error(`${failure.message}; to start with an empty one, remove the files in ${folder.path}`)
  }
  const { volume, adopted } = taken
  sayAdopted(adopted, kept.slabSize)
  try {
    folder.forgetUnused(options)
    if (resync) await resyncReplicas(volume.engine, (work) => withPageSocket(volume.engine, 0, work))
    // The folder is of an older version. Only after everything else has succeeded, because that version cannot read
    // it any more.
    if (kept.boot === undefined) keeper.served(boot)
  } catch (failure) {
    await volume.leave()
    throw failure
  }
  volume.start()
  return volume
}
