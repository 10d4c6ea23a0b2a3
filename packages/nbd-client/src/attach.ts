import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { UsageError } from '@rdmakit/verbs'
import type { BackupOptions } from './backup.js'
import { closeDescriptor, kernelDevice, protectProcess } from './engine.js'
import { ControlSocket } from './runtime.js'
import { reportFailures, say, statusOf } from './session-log.js'
import { isSwap, swapOff, swapOn } from './swap.js'
import { Volume } from './volume.js'

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
  readonly signal: AbortSignal
}

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
    throw new Error(
      'attach must be run as root: it makes a block device; for an export without root use "nbd-client serve"',
    )
  if (!existsSync('/sys/module/nbd')) {
    try {
      await promisify(execFile)('modprobe', ['nbd'], { timeout: 30_000 })
    } catch {
      // Said below: what counts is whether the module is there.
    }
    if (!existsSync('/sys/module/nbd'))
      throw new Error(
        'the kernel has no nbd module and "modprobe nbd" did not bring it; install it, or use "nbd-client serve"',
      )
  }
  if (device === undefined) return
  const name = `nbd${deviceIndex(device)}`
  if (existsSync(`/sys/block/${name}/pid`))
    throw new Error(
      `/dev/${name} is busy: it is attached already; choose another --device, or "nbd-client detach /dev/${name}"`,
    )
}

/**
 * Attaches remote memory as a kernel block device, as swap if asked, until `signal` aborts.
 * @returns the process's exit status
 */
export async function attach(options: AttachOptions): Promise<number> {
  await checkKernel(options.device)
  const volume = await Volume.open({
    servers: options.servers,
    size: options.size,
    lanes: options.connections,
    replicas: options.replicas,
    ...(options.backup === undefined ? {} : { backup: options.backup }),
    signal: options.signal,
    progress: say,
    engine: {
      operationTimeout: options.operationTimeout * 1000,
      acknowledge: options.acknowledge,
      refillRate: options.refillRate,
      prefault: options.swap,
      ioFlusher: options.swap,
    },
  })
  try {
    reportFailures(volume)
    // Not before the lanes exist: what is locked is the memory that is there.
    if (options.swap) {
      for (const { name, granted, reason } of protectProcess())
        if (!granted) say(`warning: swap safety: ${name} was not granted: ${reason}`)
    }
    for (const warning of new Set(volume.lanes.flatMap(({ warnings }) => warnings)))
      say(`warning: ${warning}`)
    const device = connectKernel(volume, options)
    return await holdDevice(volume, device, options)
  } finally {
    await volume.close()
  }
}

function connectKernel(volume: Volume, options: AttachOptions): string {
  const sockets = volume.lanes.map(({ index }) => volume.engine.attachSocketpair(index))
  try {
    const index = kernelDevice.connect({
      ...(options.device === undefined ? {} : { index: deviceIndex(options.device) }),
      size: options.size,
      serverFlags: volume.engine.exportFlags,
      sockets,
      // Above the engine's own deadlines: the engine says what failed, the kernel only that time is up. A
      // READ may have to try each replica, and then the backup.
      timeout:
        options.operationTimeout * options.replicas +
        6 +
        (options.backup === undefined ? 0 : BACKUP_TIMEOUT_S),
      // Nobody takes this device over: what a dead client left in flight fails instead of waiting.
      deadConnectionTimeout: 0,
      identifier: `rdmakit-${process.pid}`,
    })
    return `/dev/nbd${index}`
  } catch (failure) {
    const { code } = failure as NodeJS.ErrnoException
    if (code === 'EBUSY')
      throw new Error(
        `${options.device ?? 'the device'} is busy: it is attached already; choose another --device`,
      )
    if (code === 'ENODEV' || code === 'EINVAL')
      throw new Error(
        `the kernel has no ${options.device ?? 'free NBD device'}; load nbd with more devices ("modprobe nbd nbds_max=16")`,
      )
    throw failure
  } finally {
    for (const socket of sockets) closeDescriptor(socket)
  }
}

/** From the attached device to its orderly end. */
async function holdDevice(volume: Volume, device: string, options: AttachOptions): Promise<number> {
  let control: ControlSocket | undefined
  try {
    if (options.swap) await swapOn(device, options.swapPriority)
    control = await ControlSocket.open(
      () => statusOf(volume, { mode: 'attach', target: device, swap: options.swap }),
      () => process.kill(process.pid, 'SIGTERM'),
    )
    process.stdout.write(`attached ${device}\n`)
    const status = await untilStopped(volume, options.signal)
    if (isSwap(device)) await giveSwapBack(volume, device)
    return status
  } finally {
    control?.close()
    kernelDevice.disconnect(deviceIndex(device))
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
