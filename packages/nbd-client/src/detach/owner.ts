import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import type { SilentProgram } from '@rdmakit/operator-kit'
import {
  type DeviceIdentity,
  identifierOf,
  namedProcess,
  processesOfOthers,
} from '../kernel/device-identity.js'
import { type DeviceName, devicePath } from '../kernel/device-name.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { ownerAmong, type RunningClient, runningClients } from '../report/control.js'

/** From one look at who answers to the next. */
const LOOK_MS = 50

/**
 * The processes that have it; `hung`: that may have it, and do not answer. If that may lose pages, they are asked for
 * the whole remaining time.
 */
export async function processesOf(
  device: DeviceIdentity,
  { timeout, force }: { readonly timeout: number; readonly force: boolean },
) {
  const deadline = performance.now() + timeout * 1000
  for (;;) {
    const silent: SilentProgram[] = []
    const clients = await runningClients((program) => silent.push(program))
    const owner = ownerAmong(clients, devicePath(device), device.identifier)
    const hung = owner === undefined ? hungOwners(device, clients, silent) : []
    if (hung.length === 0 || !force || performance.now() > deadline) return { owner, hung }
    await delay(LOOK_MS)
  }
}

/** The kernel's device of this name. `left`: a ublk device without a disk and without a server */
export function inKernel(name: DeviceName): { identifier: string | undefined; left: boolean } {
  const identifier = identifierOf(name)
  if (identifier !== undefined || name.front === 'nbd' || !ublkDevice.isLeftOver(name.index))
    return { identifier, left: false }
  return { identifier: ublkDevice.identifierOf(name.index), left: true }
}

/**
 * Processes that do not answer and may have the device: the one that the kernel names, if it lives, and of nbd, where that has
 * made the device and may have handed it over, nbd-clients that the kernel names for no other device.
 */
function hungOwners(
  device: DeviceIdentity,
  clients: readonly RunningClient[],
  silent: readonly SilentProgram[],
): number[] {
  const named = namedProcess(device)
  if (named !== undefined && attaches(named) && !clients.some(({ pid }) => pid === named)) return [named]
  if (device.front === 'ublk') return []
  const elsewhere = processesOfOthers(device)
  return silent.map(({ pid }) => pid).filter((pid) => !elsewhere.has(pid))
}

/** It lives, and is no other program that has its number now. */
function attaches(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes('attach')
  } catch {
    return false
  }
}
