import { type ControlSocket, formatSize, openRuntimeDirectory } from '@rdmakit/operator-kit'
import { type BackupOptions, type Compress, NothingLeftError, resyncReplicas } from '@rdmakit/remote-volume'
import { endKept } from '@rdmakit/remote-volume/internal'
import { ConfigurationError } from '@rdmakit/swap-server'
import { notifyReady } from '@rdmakit/swap-server/internal'
import { UsageError } from '@rdmakit/verbs'
import type { VolumeOptions } from '../engine/block-volume.js'
import { Volume } from '../engine/block-volume.js'
import { withPageSocket } from '../engine/page-socket.js'
import { devicePath } from '../kernel/device-name.js'
import { openControlSocket } from '../report/control.js'
import { holdsNoPages, holdsPages } from '../report/last-resort.js'
import { reportFailures, reportWrongPages, say, sayBackup, statusOf } from '../report/session-log.js'
import { type Boot, currentBoot, isOfBoot } from '../upgrade/boot.js'
import { StateFolder } from '../upgrade/state-folder.js'
import type { KeptVolume } from '../upgrade/volume-json.js'
import { type KeptFiles, VolumeKeeper } from '../upgrade/volume-keeper.js'
import { ExportPlace, type ExportPlaceOptions } from './export-place.js'

export interface ServeOptions extends ExportPlaceOptions {
  readonly servers: readonly (readonly string[])[]
  readonly size: number
  readonly connections: number
  /** bytes */
  readonly minimumBlockSize: number
  /** seconds */
  readonly operationTimeout: number
  readonly replicas: number
  /** take memory of the servers as it is written, see VolumeOptions.thin */
  readonly thin: boolean
  readonly acknowledge: 'all' | 'one' | 'backup'
  /** undefined: none */
  readonly backup: BackupOptions | undefined
  /** bytes; 0: none */
  readonly readAhead: number
  /** bytes per second; 0: no limit */
  readonly refillRate: number
  /** keep and check a checksum of each page */
  readonly checksums: boolean
  readonly compress: Compress
  readonly access: NonNullable<VolumeOptions['access']>
  /** folder that lets the next process serve the same volume; default none */
  readonly state?: string | undefined
  /** seconds that the servers keep the slabs without a process; with `state` only */
  readonly linger?: number
  /** seconds that requests wait for a server that alone has their pages, see VolumeOptions.reconnect; default 0 */
  readonly reconnect?: number
  readonly signal: AbortSignal
}

/**
 * Serves remote memory as an NBD export until `signal` aborts or the last server is lost. With `state`, the volume
 * stays for a while when this process ends, and the next one with that folder serves it again.
 * @returns the process's exit status
 */
export async function serve(given: ServeOptions): Promise<number> {
  // Its control socket is opened when the volume is there, and would be too late then to be refused without a trace.
  openRuntimeDirectory()
  const place = await ExportPlace.open(given)
  try {
    return await serveAt({ ...given, place })
  } finally {
    place.close()
  }
}

interface Serving extends ServeOptions {
  readonly place: ExportPlace
}

async function serveAt(options: Serving): Promise<number> {
  if (options.state === undefined) {
    const volume = await Volume.open(volumeOptions(options))
    try {
      return await serveVolume(volume, options)
    } finally {
      await volume.close()
    }
  }
  if (options.acknowledge === 'one')
    throw new UsageError(
      '--state needs --ack all or --ack backup: with --ack one an answered write may be lost with the process',
    )
  if (options.compress !== 'none')
    throw new UsageError(
      'serve has no --compress with --state: a page that was being written when the process dies could be lost',
    )
  const folder = StateFolder.open(options.state)
  try {
    return await serveKept(options, folder)
  } finally {
    folder.close()
  }
}

async function serveKept(options: Serving, folder: StateFolder): Promise<number> {
  const kept = folder.read()
  if (kept?.device !== undefined || kept?.connecting !== undefined) {
    const device = kept.device === undefined ? 'a device' : devicePath(kept.device)
    throw new UsageError(`${folder.path} is of ${device}; give the export its own --state`)
  }
  const boot = currentBoot()
  if (kept?.served === true) checkBoot(folder, kept, boot)
  if (!options.checksums) folder.forgetChecksums()
  let volume: Volume
  if (kept?.served === true) {
    volume = await takeUp(options, folder, kept, boot)
  } else {
    // One that ended before anybody could write to it.
    if (kept !== undefined) await endKept(kept, { ...options.access, signal: options.signal }, say)
    folder.clear()
    volume = await openKept(options, folder, boot)
  }
  try {
    return await serveVolume(volume, options)
  } finally {
    // An end is one for this process: what clients have written they find again.
    await volume.leave()
  }
}

/** @throws ConfigurationError: the machine was started again since, and nobody knows what was on its disk by then */
function checkBoot(folder: StateFolder, { boot }: KeptVolume, now: Boot): void {
  if (isOfBoot(boot, folder.written, now, Date.now())) return
  throw new ConfigurationError(
    `${folder.path} is of an export from before this machine was started again: what clients wrote and flushed may be missing in it, and would read as zeros; remove the folder's files to start with an empty volume`,
  )
}

/** A new volume that the folder keeps. */
async function openKept(options: Serving, folder: StateFolder, boot: Boot): Promise<Volume> {
  const keeper = new VolumeKeeper(folder, options)
  const { engine, ...keeping } = keeper.options((options.linger ?? 0) * 1000, options.backup)
  let volume: Volume | undefined
  try {
    volume = await Volume.open({ ...volumeOptions(options, engine), ...keeping })
    keeper.served(boot.id)
    return volume
  } catch (failure) {
    await volume?.close()
    folder.clear()
    throw failure
  }
}

/** The volume of a process that has ended. */
async function takeUp(options: Serving, folder: StateFolder, kept: KeptVolume, boot: Boot): Promise<Volume> {
  for (const what of ['size', 'replicas'] as const)
    if (kept[what] !== options[what])
      throw new UsageError(
        `${folder.path} is of a volume with --${what} ${kept[what]}; put the old value back, or remove the folder's files to begin an empty volume`,
      )
  if ((kept.thin ?? false) !== options.thin)
    throw new UsageError(
      `${folder.path} is of a volume ${kept.thin ? 'with' : 'without'} --thin; put the old option back, or remove the folder's files to begin an empty volume`,
    )
  say(`going on with the volume of ${folder.path}`)
  const keeper = new VolumeKeeper(folder, kept, kept)
  const { engine, ...keeping } = keeper.options((options.linger ?? 0) * 1000, options.backup)
  let taken: Awaited<ReturnType<typeof Volume.takeOver>>
  try {
    taken = await Volume.takeOver({ ...volumeOptions(options, engine), ...keeping }, kept)
  } catch (failure) {
    if (!(failure instanceof NothingLeftError)) throw failure
    throw new Error(`${failure.message}; to start with an empty one, remove the files in ${folder.path}`)
  }
  const { volume, adopted } = taken
  const bytes = (slabs: number) => formatSize(slabs * kept.slabSize)
  sayBackup(adopted, kept.slabSize)
  if (adopted.lost > 0) say(`${bytes(adopted.lost)} of the volume are lost and answer with I/O errors`)
  if (adopted.degraded > 0) say(`${bytes(adopted.degraded)} have a replica less until they are refilled`)
  try {
    if (volume.replicas > 1 || options.backup !== undefined)
      await resyncReplicas(volume.engine, (work) => withPageSocket(volume.engine, 0, work))
    // Of an older version's folder. Not before all else has gone well, for that version cannot read it any more.
    if (kept.boot === undefined) keeper.served(boot.id)
  } catch (failure) {
    await volume.leave()
    throw failure
  }
  volume.start()
  return volume
}

function volumeOptions(options: Serving, files?: KeptFiles): VolumeOptions {
  return {
    servers: options.servers,
    size: options.size,
    lanes: options.connections,
    replicas: options.replicas,
    thin: options.thin,
    access: options.access,
    reconnect: (options.reconnect ?? 0) * 1000,
    ...(options.backup === undefined ? {} : { backup: options.backup }),
    prepare: (engine) => options.place.bind(engine),
    signal: options.signal,
    progress: say,
    engine: {
      exports: options.exports,
      minimumBlockSize: options.minimumBlockSize,
      ...(options.tls === undefined ? {} : { tls: options.tls }),
      operationTimeout: options.operationTimeout * 1000,
      acknowledge: options.acknowledge,
      readAhead: options.readAhead,
      refillRate: options.refillRate,
      checksums: options.checksums,
      compress: options.compress,
      ...files,
    },
  }
}

async function serveVolume(volume: Volume, options: Serving): Promise<number> {
  let control: ControlSocket | undefined
  holdsPages(options.state !== undefined)
  try {
    reportFailures(volume)
    reportWrongPages(volume)
    const { uri } = options.place
    volume.engine.acceptClients()
    const stopped = new Promise<number>((resolve) => {
      if (options.signal.aborted) resolve(0)
      options.signal.addEventListener('abort', () => resolve(0), { once: true })
      volume.onFenced((failure) => {
        say(failure.message)
        resolve(failure.status)
      })
      // With its last server the volume has lost its data: in-flight requests get EIO, and a new start
      // makes a new volume. Unless another process has it.
      const check = () => {
        if (volume.lost) void volume.askFenced().then((fenced) => resolve(fenced?.status ?? 1))
      }
      volume.onServerFailure(check)
      volume.onBackupFailure(check)
      check()
    })
    control = await openControlSocket(
      () => statusOf(volume, { mode: 'serve', target: uri, swap: false }),
      () => process.kill(process.pid, 'SIGTERM'),
    )
    volume.engine.on('listenerFailed', ({ address: where, reason }) =>
      say(`listener ${where} failed: ${reason}`),
    )
    const metrics = options.place.measure(volume)
    if (metrics !== undefined) process.stdout.write(`metrics ${metrics}\n`)
    process.stdout.write(`ready ${uri}\n`)
    await notifyReady(`serves ${uri}`, say)
    return await stopped
  } finally {
    control?.close()
    holdsNoPages()
  }
}
