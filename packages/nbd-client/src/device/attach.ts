import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { EXIT, ExitError, formatSize, MetricsEndpoint, openRuntimeDirectory } from '@rdmakit/operator-kit'
import type { BackupOptions, Compress } from '@rdmakit/remote-volume'
import { endKept } from '@rdmakit/remote-volume/internal'
import { UsageError } from '@rdmakit/verbs'
import type { VolumeOptions } from '../engine/block-volume.js'
import { Volume } from '../engine/block-volume.js'
import { drawIdentifier, isOurMake, presenceOf } from '../kernel/device-identity.js'
import { attachedFile, type DeviceName, devicePath, type Front, parseDevice } from '../kernel/device-name.js'
import { closeDescriptor, kernelDevice, protectProcess, type Safety } from '../kernel/kernel.js'
import { isSwap } from '../kernel/swap.js'
import { ControlGroup } from '../kernel/swap-free-group.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { reportFailures, reportWrongPages, say, sayBackup } from '../report/session-log.js'
import { inheritedState, openOwnState } from '../upgrade/default-state.js'
import { type Inheritance, Predecessor } from '../upgrade/predecessor.js'
import { StateFolder } from '../upgrade/state-folder.js'
import type { KeptDevice, KeptVolume } from '../upgrade/volume-json.js'
import { type KeptFiles, VolumeKeeper } from '../upgrade/volume-keeper.js'
import { AttachedDevice, lockQueues, newLink, type Succession } from './attached-device.js'
import { deviceTimeouts, endUnannounced, UblkLink } from './device-link.js'

export interface AttachOptions {
  readonly servers: readonly (readonly string[])[]
  readonly size: number
  /** the kernel's driver that serves the device; default `nbd` */
  readonly front?: Front
  /** `/dev/nbdN` or `/dev/ublkbN`, as `front` says; default the first free one */
  readonly device: string | undefined
  readonly connections: number
  /** keep lanes on the processors whose requests they serve */
  readonly pin: boolean
  readonly swap: boolean
  readonly swapPriority: number | undefined
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
  /** where to serve metrics */
  readonly metrics: string | undefined
  /** folder that lets a successor of this process go on with the device; default one of its own with `swap`; false: none */
  readonly state?: string | false | undefined
  /** seconds that the servers keep the slabs when this process dies; with `state` only */
  readonly linger?: number
  /** seconds that requests wait for a server that alone has their pages, see VolumeOptions.reconnect; default 0 */
  readonly reconnect?: number
  /** what starting this process out of swap came to; default: what its control group says */
  readonly swapFree?: Safety
  readonly signal: AbortSignal
}

/** @returns undefined: the first free one @throws UsageError: it is no device of that driver */
export function chosenDevice({ device, front = 'nbd' }: { device?: string | undefined; front?: Front }) {
  if (device === undefined) return undefined
  const name = parseDevice(device)
  if (name.front !== front) throw new UsageError(`${devicePath(name)} is not a device of --front ${front}`)
  return name
}

const MODULES = { nbd: 'nbd', ublk: 'ublk_drv' } as const

function checkRoot(): void {
  if (process.geteuid?.() !== 0)
    throw new ExitError(
      'attach must be run as root: it makes a block device; for an export without root use "nbd-client serve"',
      EXIT.forbidden,
    )
}

/** Everything that can be known to be wrong before a server is bothered. */
async function checkKernel(front: Front, device: DeviceName | undefined): Promise<void> {
  const module = MODULES[front]
  // Where it is built in, ublk_drv is no module.
  const isThere = () => (front === 'ublk' ? ublkDevice.isThere() : existsSync(`/sys/module/${module}`))
  if (!isThere()) {
    try {
      await promisify(execFile)('modprobe', [module], { timeout: 30_000 })
    } catch {
      // Said below: what counts is whether the module is there.
    }
    if (!isThere())
      throw new ExitError(
        `--front ${front}: the kernel has no ${module} module and "modprobe ${module}" did not bring it; install it, or use ${
          front === 'nbd' ? '"nbd-client serve"' : '--front nbd'
        }`,
        EXIT.system,
      )
  }
  if (device === undefined) return
  const path = devicePath(device)
  if (existsSync(attachedFile(device)))
    throw new ExitError(
      `${path} is busy: it is attached already; choose another --device, or "nbd-client detach ${path}"`,
      EXIT.taken,
    )
}

/**
 * Attaches remote memory as a kernel block device, as swap if asked, until `signal` aborts. With `state`, a device
 * that an earlier process left there is taken over, or handed over by the one that starts this one for that.
 * @returns the process's exit status
 */
export async function attach(options: AttachOptions): Promise<number> {
  checkRoot()
  if (options.swap && options.thin)
    say('warning: swap on a thin volume: a page that is swapped out is lost when no server has memory left')
  const predecessor = Predecessor.find()
  if (!keepsState(options)) {
    if (predecessor !== undefined) throw new UsageError('a device is handed over with --state only')
    return await attachNew(options, undefined)
  }
  if (predecessor !== undefined)
    return await inherit(options, options.state || inheritedState(options, predecessor.state), predecessor)
  return await attachKept(options, options.state ? StateFolder.open(options.state) : openOwnState(options))
}

/** @throws UsageError: it would lose what was answered */
function keepsState({ state, swap, acknowledge }: AttachOptions): boolean {
  if (state === false || (state === undefined && !swap)) return false
  if (acknowledge === 'one')
    throw new UsageError(
      state === undefined
        ? '--swap keeps state, and with --ack one an answered write may be lost with the process; add --no-state to lose the swap with it'
        : '--state needs --ack all or --ack backup: with --ack one an answered write may be lost with the process',
    )
  return true
}

async function attachKept(options: AttachOptions, folder: StateFolder): Promise<number> {
  try {
    const kept = folder.read()
    if (kept?.device !== undefined && presenceOf(kept.device) === 'there') {
      checkSame(options, folder.path, kept, kept.device)
      say(`taking over ${devicePath(kept.device)}`)
      return await takeOver(options, folder, kept.device)
    }
    if (kept?.served === true)
      throw new UsageError(`${folder.path} is of an export of serve; give the device its own --state`)
    if (kept !== undefined) {
      if (kept.connecting !== undefined) await endUnannounced(kept.connecting)
      // Its disk is gone, but of ublk something may be left.
      const left = kept.device?.front === 'ublk' ? ublkDevice.find(kept.device.identifier) : undefined
      if (left !== undefined) await ublkDevice.end(left.index)
      say(`${folder.path} is of a volume whose device is gone: starting anew`)
      await endKept(kept, { ...options.access, signal: options.signal }, say)
    }
    folder.clear()
    return await attachNew(options, folder)
  } finally {
    folder.close()
  }
}

/** Goes on with a device that another process hands over, or, when that one dies of it, takes it over. */
async function inherit(options: AttachOptions, state: string, predecessor: Predecessor): Promise<number> {
  const kept = StateFolder.look(state)
  if (kept?.device === undefined) throw new UsageError(`${state} is of no device that could be handed over`)
  // Whatever is wrong with the command line must show now, while the device is served.
  checkSame(options, state, kept, kept.device)
  const path = devicePath(kept.device)
  if (options.swap && !isSwap(path))
    throw new UsageError(`${path} is no swap; attach it anew for that, with nothing on it`)
  const inheritance = await predecessor.inheritance(options.signal)
  const folder = inheritance ? StateFolder.inherit(state, inheritance.lock) : StateFolder.open(state)
  try {
    if (inheritance !== undefined)
      return await takeOver(options, folder, kept.device, { predecessor, inheritance })
    if (folder.read() === undefined || presenceOf(kept.device) !== 'there')
      throw new Error(`${path} ended before it was handed over`)
    say(`taking over ${path}: its process ended before it had handed it over`)
    return await takeOver(options, folder, kept.device)
  } finally {
    folder.close()
  }
}

/** @throws UsageError: the folder's device is another one than `options` say */
function checkSame(options: AttachOptions, folder: string, kept: KeptVolume, device: KeptDevice): void {
  const path = devicePath(device)
  const differs = (what: string, there: unknown) =>
    new UsageError(
      `${folder} is of ${path}, which is attached, with ${what} ${there}; put the old value back, or detach ${path} and attach it anew with the other one`,
    )
  if (kept.size !== options.size) throw differs('--size', kept.size)
  if (kept.replicas !== options.replicas) throw differs('--replicas', kept.replicas)
  if ((kept.thin ?? false) !== options.thin)
    throw differs('memory', kept.thin ? 'taken as it is written (--thin)' : 'taken at the start')
  if (kept.compressed === true && !options.checksums)
    throw new UsageError(
      `${folder} has compressed pages, which need their checksums: leave out --no-checksum`,
    )
  if ((options.front ?? 'nbd') !== device.front) throw differs('--front', device.front)
  const chosen = chosenDevice(options)
  if (chosen !== undefined && chosen.index !== device.index) throw differs('--device', path)
}

async function attachNew(options: AttachOptions, folder: StateFolder | undefined): Promise<number> {
  const { front = 'nbd' } = options
  const chosen = chosenDevice(options)
  await checkKernel(front, chosen)
  // Both are opened with the device, and would be too late then to be refused without a trace.
  openRuntimeDirectory()
  if (options.metrics !== undefined) await MetricsEndpoint.check(options.metrics)
  const kept = folder !== undefined
  const keeper = folder && new VolumeKeeper(folder, options)
  const linger = (options.linger ?? 0) * 1000
  const { engine, ...keeping } = keeper?.options(linger, options.backup, options.compress) ?? {
    engine: undefined,
  }
  const volume = await Volume.open({ ...volumeOptions(options, engine), ...keeping })
  const identifier = drawIdentifier(front)
  let device: AttachedDevice
  try {
    prepare(volume, options)
    keeper?.connecting(identifier)
    const { index, link } =
      front === 'nbd'
        ? { index: connectKernel(volume, options, chosen?.index, identifier, kept), link: undefined }
        : await startUblk(volume, options, chosen?.index, identifier, kept)
    let succession: Succession | undefined
    if (folder !== undefined && keeper !== undefined) {
      const kernels = { front, index, identifier, connections: options.connections }
      keeper.device(kernels)
      succession = successionOf(options, folder, kernels)
    }
    const of = link && { link, taken: false }
    device = new AttachedDevice(volume, { front, index, identifier }, options, succession, of)
  } catch (failure) {
    await volume.close()
    // Before the folder forgets its name.
    await endUnannounced(identifier)
    folder?.forget()
    throw failure
  }
  return await device.hold()
}

/** Goes on where another process ended, or has stopped to hand over. The kernel has the device. */
async function takeOver(
  options: AttachOptions,
  folder: StateFolder,
  device: KeptDevice,
  from?: { predecessor: Predecessor; inheritance: Inheritance },
): Promise<number> {
  const succession = successionOf(options, folder, device)
  // Who stops a process that is to take a device over wants the device to end, and for that it must be served.
  const signal = from === undefined ? new AbortController().signal : options.signal
  const volume = await succession.takeUp(signal, from !== undefined)
  const link = newLink(volume, device, options, true)
  try {
    if (from === undefined) {
      await link.reconnect(signal)
    } else {
      await from.predecessor.taken(options.signal)
      await link.adopt(from.inheritance.sockets, options.signal)
      from.predecessor.serving()
    }
    volume.start()
  } catch (failure) {
    // Until the kernel has our sockets another process may still do better.
    link.end()
    await volume.leave()
    throw failure
  }
  return await new AttachedDevice(volume, device, options, succession, { link, taken: true }).hold()
}

function successionOf(options: AttachOptions, folder: StateFolder, device: KeptDevice) {
  return {
    folder,
    device,
    async takeUp(signal = new AbortController().signal, handedOver = false): Promise<Volume> {
      const kept = folder.read()
      if (kept === undefined) throw new Error(`${folder.path} keeps no volume any more`)
      if (!options.checksums) folder.forgetChecksums()
      const keeper = new VolumeKeeper(folder, kept, kept)
      const linger = (options.linger ?? 0) * 1000
      const { engine, ...keeping } = keeper.options(linger, options.backup, options.compress)
      const { volume, adopted } = await Volume.takeOver(
        {
          ...volumeOptions({ ...options, connections: device.connections, signal }, engine),
          ...keeping,
          raise: () => keeper.raise(handedOver),
        },
        kept,
      )
      if (options.compress !== 'none') await keepCompression(keeper, volume)
      const bytes = (slabs: number) => formatSize(slabs * kept.slabSize)
      sayBackup(adopted, kept.slabSize)
      if (adopted.lost > 0) say(`${bytes(adopted.lost)} of the volume are lost and answer with I/O errors`)
      if (adopted.degraded > 0) say(`${bytes(adopted.degraded)} have a replica less until they are refilled`)
      prepare(volume, options)
      return volume
    },
  }
}

async function keepCompression(keeper: VolumeKeeper, volume: Volume): Promise<void> {
  try {
    keeper.compresses()
  } catch (failure) {
    await volume.leave()
    throw failure
  }
}

/** What is told of it, and its memory locked: not before the lanes exist, for what is locked is what is there. */
function prepare(volume: Volume, options: AttachOptions): void {
  reportFailures(volume)
  reportWrongPages(volume)
  if (options.swap) {
    for (const { name, granted, reason } of [
      ...protectProcess(),
      options.swapFree ?? new ControlGroup().swapFree(),
    ])
      if (!granted) say(`warning: swap safety: ${name} was not granted: ${reason}`)
  }
  for (const warning of new Set(volume.lanes.flatMap(({ warnings }) => warnings))) say(`warning: ${warning}`)
}

function volumeOptions(options: AttachOptions, files: KeptFiles | undefined): VolumeOptions {
  return {
    servers: options.servers,
    size: options.size,
    lanes: options.connections,
    replicas: options.replicas,
    thin: options.thin,
    access: options.access,
    reconnect: (options.reconnect ?? 0) * 1000,
    ...(options.backup === undefined ? {} : { backup: options.backup }),
    signal: options.signal,
    progress: say,
    engine: {
      operationTimeout: options.operationTimeout * 1000,
      acknowledge: options.acknowledge,
      readAhead: options.readAhead,
      refillRate: options.refillRate,
      checksums: options.checksums,
      compress: options.compress,
      prefault: options.swap,
      ioFlusher: options.swap,
      ...files,
    },
  }
}

/** @returns the device's index */
function connectKernel(
  volume: Volume,
  options: AttachOptions,
  index: number | undefined,
  identifier: string,
  kept: boolean,
): number {
  const sockets = volume.lanes.map(({ index }) => volume.engine.attachSocketpair(index))
  try {
    return kernelDevice.connect({
      ...(index === undefined ? {} : { index }),
      size: options.size,
      serverFlags: volume.engine.exportFlags,
      sockets,
      identifier,
      ...deviceTimeouts(options, kept),
    })
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    if (code === 'EBUSY')
      throw new ExitError(
        `${options.device ?? 'the device'} is busy: it is attached already; choose another --device`,
        EXIT.taken,
      )
    if (code === 'ENODEV' || code === 'EINVAL')
      throw new ExitError(
        `the kernel has no ${options.device ?? 'free NBD device'}; load nbd with more devices ("modprobe nbd nbds_max=16")`,
        EXIT.system,
      )
    throw failure
  } finally {
    for (const socket of sockets) closeDescriptor(socket)
  }
}

/** @returns the device's index; and its link, which hears of a queue that fails from the first request on */
async function startUblk(
  volume: Volume,
  options: AttachOptions,
  wanted: number | undefined,
  identifier: string,
  kept: boolean,
): Promise<{ index: number; link: UblkLink }> {
  try {
    if (wanted !== undefined && ublkDevice.isLeftOver(wanted)) await endLeftOver(wanted)
    const device = ublkDevice.add({
      ...(wanted === undefined ? {} : { index: wanted }),
      size: options.size,
      queues: volume.lanes.length,
      identifier,
      kept,
    })
    const { index } = device
    const link = new UblkLink(volume, { front: 'ublk', index, identifier }, () => lockQueues(options))
    try {
      await link.start(device)
    } catch (failure) {
      link.end()
      throw failure
    }
    return { index, link }
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code === 'EEXIST')
      throw new ExitError(
        `${options.device} is busy: it is attached already; choose another --device`,
        EXIT.taken,
      )
    throw failure
  }
}

/** @throws ExitError: another program has left it */
async function endLeftOver(index: number): Promise<void> {
  const identifier = ublkDevice.identifierOf(index)
  const path = devicePath({ front: 'ublk', index })
  if (identifier !== undefined && !isOurMake(identifier))
    throw new ExitError(
      `${path} is busy: another program has left it without a disk; choose another --device, or "nbd-client detach --force ${path}"`,
      EXIT.taken,
    )
  await ublkDevice.end(index)
}
