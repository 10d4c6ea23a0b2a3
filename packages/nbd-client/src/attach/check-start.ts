import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { EXIT, ExitError, MetricsEndpoint, openRuntimeDirectory } from '@rdmakit/operator-kit'
import { attachedFile, type DeviceName, devicePath, type Front } from '../kernel/device-name.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { type AttachOptions, chosenDevice } from './attach-options.js'

const MODULES = { nbd: 'nbd', ublk: 'ublk_drv' } as const

/** Everything that can be known to be wrong before a server is bothered. @returns the device that was chosen, if one was */
export async function checkStart(options: AttachOptions): Promise<DeviceName | undefined> {
  const chosen = chosenDevice(options)
  await checkKernel(options.front ?? 'nbd', chosen)
  // Both are opened with the device, and would be too late then to be refused without a trace.
  openRuntimeDirectory()
  if (options.metrics !== undefined) await MetricsEndpoint.check(options.metrics)
  return chosen
}

async function checkKernel(front: Front, device: DeviceName | undefined): Promise<void> {
  const module = MODULES[front]
  // Where it is built in, ublk_drv is no module.
  const isThere = () => (front === 'ublk' ? ublkDevice.isThere() : existsSync(`/sys/module/${module}`))
  if (!isThere()) {
    try {
      await promisify(execFile)('modprobe', [module], { timeout: 30_000 })
    } catch {
      // Reported below: only the module's presence counts.
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
