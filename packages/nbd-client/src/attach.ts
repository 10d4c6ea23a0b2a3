import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import {
  type ControlSocket,
  EXIT,
  ExitError,
  formatSize,
  type MetricsEndpoint,
  notifyReady,
} from '@rdmakit/swap-server'
import { UsageError } from '@rdmakit/verbs'
import type { BackupOptions } from './backup.js'
import { closeDescriptor, kernelDevice, protectProcess } from './kernel.js'
import { deviceExists, drawIdentifier, KernelLink, keptDeviceOptions, requestTimeout } from './kernel-link.js'
import { serveMetrics } from './metrics.js'
import { openControlSocket } from './runtime.js'
import { reportFailures, reportWrongPages, say, statusOf } from './session-log.js'
import { type KeptDevice, type KeptVolume, StateFolder } from './state-folder.js'
import { isSwap, swapOff, swapOn } from './swap.js'
import { endKept } from './take-over.js'
import { Volume } from './volume.js'
import { type KeptFiles, VolumeKeeper } from './volume-keeper.js'
import type { VolumeOptions } from './volume-options.js'

export interface AttachOptions {
  readonly servers: readonly (readonly string[])[]
  readonly size: number
  /** `/dev/nbdN`; default the first free one */
  readonly device: string | undefined
  readonly connections: number
  readonly swap: boolean
  readonly swapPriority: number | undefined
  /** seconds */
  readonly operationTimeout: number
  readonly replicas: number
  readonly acknowledge: 'all' | 'one' | 'backup'
  /** undefined: none */
  readonly backup: BackupOptions | undefined
  /** bytes per second; 0: no limit */
  readonly refillRate: number
  /** keep and check a checksum of each page */
  readonly checksums: boolean
  readonly access: NonNullable<VolumeOptions['access']>
  /** where to serve metrics */
  readonly metrics: string | undefined
  /** folder that lets a successor of this process go on with the device; default none */
  readonly state?: string | undefined
  /** seconds that the servers keep the slabs when this process dies; with `state` only */
  readonly linger?: number
  readonly signal: AbortSignal
}

const PAGE = 4096
/** seconds that the file of a backup may take for one system call (native/engine/backup.h) */
const BACKUP_TIMEOUT_S = 10

/** The N of `/dev/nbdN`. @throws UsageError */
export function deviceIndex(device: string): number {
  const index = /^(?:\/dev\/)?nbd(\d{1,4})$/.exec(device)?.[1]
  if (index === undefined) throw new UsageError(`"${device}" is not an NBD device; write /dev/nbd0`)
  return Number(index)
}

/** Everything that can be known to be wrong before a server is bothered. */
async function checkKernel(device: string | undefined): Promise<void> {
  if (process.geteuid?.() !== 0)
    throw new ExitError(
      'attach must be run as root: it makes a block device; for an export without root use "nbd-client serve"',
      EXIT.forbidden,
    )
  if (!existsSync('/sys/module/nbd')) {
    try {
      await promisify(execFile)('modprobe', ['nbd'], { timeout: 30_000 })
    } catch {
      // Said below: what counts is whether the module is there.
    }
    if (!existsSync('/sys/module/nbd'))
      throw new ExitError(
        'the kernel has no nbd module and "modprobe nbd" did not bring it; install it, or use "nbd-client serve"',
        EXIT.system,
      )
  }
  if (device === undefined) return
  const name = `nbd${deviceIndex(device)}`
  if (existsSync(`/sys/block/${name}/pid`))
    throw new ExitError(
      `/dev/${name} is busy: it is attached already; choose another --device, or "nbd-client detach /dev/${name}"`,
      EXIT.taken,
    )
}

/**
 * Attaches remote memory as a kernel block device, as swap if asked, until `signal` aborts. With `state`, a device
 * that an earlier process left there is taken over.
 * @returns the process's exit status
 */
export async function attach(options: AttachOptions): Promise<number> {
  if (options.state === undefined) return await attachNew(options, undefined)
  if (options.acknowledge === 'one')
    throw new UsageError(
      '--state needs --ack all or --ack backup: with --ack one an answered write may be lost with the process',
    )
  const folder = StateFolder.open(options.state)
  try {
    if (!options.checksums) folder.forgetChecksums()
    const kept = folder.read()
    if (kept?.device !== undefined && deviceExists(kept.device))
      return await takeOver(options, folder, kept, kept.device)
    if (kept !== undefined) {
      say(`${folder.path} is of a volume whose device is gone: starting anew`)
      await endKept(kept, { ...options.access, signal: options.signal })
    }
    folder.clear()
    return await attachNew(options, folder)
  } finally {
    folder.close()
  }
}

async function attachNew(options: AttachOptions, folder: StateFolder | undefined): Promise<number> {
  await checkKernel(options.device)
  const keeper = folder && new VolumeKeeper(folder, options)
  const { engine, ...keeping } = keeper?.options((options.linger ?? 0) * 1000, options.backup) ?? {
    engine: undefined,
  }
  const volume = await Volume.open({ ...volumeOptions(options, engine), ...keeping })
  try {
    reportFailures(volume)
    reportWrongPages(volume)
    protect(volume, options)
    const identifier = keeper === undefined ? undefined : drawIdentifier()
    const index = connectKernel(volume, options, identifier)
    let link: KernelLink | undefined
    if (keeper !== undefined && identifier !== undefined) {
      const device = { index, identifier, connections: options.connections }
      keeper.device(device)
      link = new KernelLink(volume, device, requestTimeout(options.operationTimeout))
    }
    const status = await holdDevice(volume, `/dev/nbd${index}`, options, link)
    return status
  } finally {
    await volume.close()
    folder?.clear()
  }
}

/** Goes on where another process ended. The kernel has the device, and its requests wait. */
async function takeOver(
  options: AttachOptions,
  folder: StateFolder,
  kept: KeptVolume,
  device: KeptDevice,
): Promise<number> {
  const path = `/dev/nbd${device.index}`
  const differs = (what: string, there: unknown) =>
    new UsageError(
      `${folder.path} is of ${path}, which is attached, with ${what} ${there}; detach it to change that`,
    )
  if (kept.size !== options.size) throw differs('--size', kept.size)
  if (kept.replicas !== options.replicas) throw differs('--replicas', kept.replicas)
  if (options.device !== undefined && deviceIndex(options.device) !== device.index)
    throw differs('--device', path)
  say(`taking over ${path}`)
  const keeper = new VolumeKeeper(folder, kept, kept)
  const { engine, ...keeping } = keeper.options((options.linger ?? 0) * 1000, options.backup)
  const { volume, adopted } = await Volume.takeOver(
    { ...volumeOptions({ ...options, connections: device.connections }, engine), ...keeping },
    kept,
  )
  let held = false
  try {
    reportFailures(volume)
    reportWrongPages(volume)
    protect(volume, options)
    const bytes = (slabs: number) => formatSize(slabs * kept.slabSize)
    if (adopted.backedUp > 0) say(`${bytes(adopted.backedUp)} of the volume are read from the backup`)
    if (adopted.missing > 0)
      say(`${formatSize(adopted.missing * PAGE)} of it are not there: I/O errors until they are written anew`)
    if (adopted.lost > 0) say(`${bytes(adopted.lost)} of the volume are lost and answer with I/O errors`)
    if (adopted.degraded > 0) say(`${bytes(adopted.degraded)} have a replica less until they are refilled`)
    const link = new KernelLink(volume, device, requestTimeout(options.operationTimeout))
    link.reconfigure()
    volume.start()
    held = true
    return await holdDevice(volume, path, options, link)
  } finally {
    // Until the kernel has our sockets another process may still do better.
    if (held) {
      await volume.close()
      folder.clear()
    } else {
      await volume.leave()
    }
  }
}

function volumeOptions(options: AttachOptions, files: KeptFiles | undefined): VolumeOptions {
  return {
    servers: options.servers,
    size: options.size,
    lanes: options.connections,
    replicas: options.replicas,
    access: options.access,
    ...(options.backup === undefined ? {} : { backup: options.backup }),
    signal: options.signal,
    progress: say,
    engine: {
      operationTimeout: options.operationTimeout * 1000,
      acknowledge: options.acknowledge,
      refillRate: options.refillRate,
      checksums: options.checksums,
      prefault: options.swap,
      ioFlusher: options.swap,
      ...files,
    },
  }
}

/** Not before the lanes exist: what is locked is the memory that is there. */
function protect(volume: Volume, options: AttachOptions): void {
  if (options.swap) {
    for (const { name, granted, reason } of protectProcess())
      if (!granted) say(`warning: swap safety: ${name} was not granted: ${reason}`)
  }
  for (const warning of new Set(volume.lanes.flatMap(({ warnings }) => warnings))) say(`warning: ${warning}`)
}

/** @param identifier of a device that a successor may take over @returns the device's index */
function connectKernel(volume: Volume, options: AttachOptions, identifier: string | undefined): number {
  const sockets = volume.lanes.map(({ index }) => volume.engine.attachSocketpair(index))
  try {
    return kernelDevice.connect({
      ...(options.device === undefined ? {} : { index: deviceIndex(options.device) }),
      size: options.size,
      serverFlags: volume.engine.exportFlags,
      sockets,
      ...(identifier === undefined
        ? {
            // Above the engine's own deadlines: the engine says what failed, the kernel only that time is up. A
            // READ may have to try each replica, and then the backup.
            timeout:
              options.operationTimeout * options.replicas +
              6 +
              (options.backup === undefined ? 0 : BACKUP_TIMEOUT_S),
            // Nobody takes this device over: what a dead client left in flight fails instead of waiting.
            deadConnectionTimeout: 0,
            identifier: `rdmakit-${process.pid}`,
          }
        : keptDeviceOptions(identifier, options.operationTimeout)),
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

/** From the attached device to its orderly end. */
async function holdDevice(
  volume: Volume,
  device: string,
  options: AttachOptions,
  link: KernelLink | undefined,
): Promise<number> {
  let control: ControlSocket | undefined
  let metrics: MetricsEndpoint | undefined
  try {
    // Before the swap: what may fail, and is not needed, must not end it.
    metrics = await unlessSwap(device, serveMetrics(volume, options.metrics))
    // A device that was taken over is swap already.
    if (options.swap && !isSwap(device)) await swapOn(device, options.swapPriority)
    control = await unlessSwap(
      device,
      openControlSocket(
        () => statusOf(volume, { mode: 'attach', target: device, swap: options.swap }),
        () => process.kill(process.pid, 'SIGTERM'),
      ),
    )
    process.stdout.write(`attached ${device}\n`)
    await notifyReady(`attached ${device}`, say)
    const status = await untilStopped(volume, options.signal)
    if (isSwap(device)) await giveSwapBack(volume, device)
    return status
  } finally {
    control?.close()
    metrics?.close()
    link?.end()
    kernelDevice.disconnect(deviceIndex(device))
  }
}

/** What serves people only may fail at the start, but must not end a device that holds swapped pages. */
async function unlessSwap<Service>(device: string, opened: Promise<Service>): Promise<Service | undefined> {
  try {
    return await opened
  } catch (failure) {
    if (!isSwap(device)) throw failure
    say(`warning: ${(failure as Error).message}; ${device} goes on without it`)
    return undefined
  }
}

function untilStopped(volume: Volume, signal: AbortSignal): Promise<number> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(0)
    signal.addEventListener('abort', () => resolve(0), { once: true })
    const check = () => {
      if (volume.lost) resolve(1)
    }
    volume.onServerFailure(check)
    volume.onBackupFailure(check)
    if (volume.lost) resolve(1)
  })
}

/**
 * Turns the swap off. While the kernel cannot take the pages back the device must stay: leaving now
 * would lose them. Each further SIGTERM tries again.
 */
async function giveSwapBack(volume: Volume, device: string): Promise<void> {
  for (;;) {
    try {
      say(`swapoff ${device}: bringing its pages back`)
      await swapOff(device)
      return
    } catch (failure) {
      // With its servers the pages are gone: nothing is kept by staying.
      if (volume.lost) {
        say(`${(failure as Error).message}; the pages on the lost servers are gone`)
        return
      }
      say(`${(failure as Error).message}; ${device} stays attached; free memory and send SIGTERM again`)
      await new Promise<void>((resolve) => {
        process.once('SIGTERM', () => resolve())
        volume.onServerFailure(() => resolve())
        volume.onBackupFailure(() => resolve())
      })
    }
  }
}
