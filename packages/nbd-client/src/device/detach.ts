import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { EXIT, ExitError, type SilentProgram } from '@rdmakit/operator-kit'
import {
  type DeviceIdentity,
  identifierOf,
  isOurMake,
  namedProcess,
  presenceOf,
  processesOfOthers,
} from '../kernel/device-identity.js'
import { blockName, type DeviceName, devicePath, parseDevice } from '../kernel/device-name.js'
import {
  describeUses,
  lastingUses,
  MOMENT_MS,
  partitionsOf,
  swapsOn,
  type Use,
  usesOf,
} from '../kernel/device-uses.js'
import { settleUdev } from '../kernel/settle-udev.js'
import { swapOff } from '../kernel/swap.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { ownerAmong, type RunningClient, runningClients } from '../report/control.js'
import { say } from '../report/session-log.js'
import { type DetachPlan, planDetach } from './detach-plan.js'
import { disconnect, pull } from './disconnect.js'

const POLL_MS = 50
/** What is left to do of a device whose users lose it. */
const FORCED_MS = 90_000

export interface DetachOptions {
  /** seconds in which it ends in good order */
  readonly timeout: number
  /** ends it whoever uses it, whatever is lost, and whoever made it */
  readonly force: boolean
}

/**
 * Detaches a device: its process ends in good order; a device without a process is ended here.
 * @throws ExitError: it is not, and why: see {@link planDetach}
 */
export async function detach(text: string, options: DetachOptions): Promise<void> {
  const name = parseDevice(text)
  const path = devicePath(name)
  if (process.geteuid?.() !== 0) throw new ExitError('detach must be run as root', EXIT.forbidden)
  const { identifier, left } = inKernel(name)
  // From here on nothing is done to another device that gets the number.
  const device = { ...name, identifier: identifier ?? '' }
  const isThere = identifier !== undefined && !left
  const { owner, hung } = isThere ? await processesOf(device, options) : { owner: undefined, hung: [] }
  const plan = planDetach({
    path,
    device: identifier === undefined ? 'gone' : left ? 'left' : 'there',
    ours: owner !== undefined || isOurMake(device.identifier),
    owner: owner?.pid,
    silent: hung,
    uses: isThere ? await usesBesidesSwap(device, [...hung, owner?.pid ?? 0], MOMENT_MS) : [],
    swapped: swappedTo(device),
    force: options.force,
  })
  if (plan === 'ask' && owner !== undefined) return await askOwner(device, owner, options)
  await endHere(plan, device, options.timeout * 1000)
}

/** Who has it; `hung`: or may have it, and does not answer. Whom that may cost his pages is asked for as long as there is time. */
async function processesOf(device: DeviceIdentity, { timeout, force }: DetachOptions) {
  const deadline = performance.now() + timeout * 1000
  for (;;) {
    const silent: SilentProgram[] = []
    const clients = await runningClients((program) => silent.push(program))
    const owner = ownerAmong(clients, devicePath(device), device.identifier)
    const hung = owner === undefined ? hungOwners(device, clients, silent) : []
    if (hung.length === 0 || !force || performance.now() > deadline) return { owner, hung }
    await delay(POLL_MS)
  }
}

/** What the kernel has by this name. `left`: of ublk, what has no disk and no server */
function inKernel(name: DeviceName): { identifier: string | undefined; left: boolean } {
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

/**
 * Swap on it and its partitions is turned off, so that is no use of it.
 * @param moment milliseconds, see {@link lastingUses}
 */
async function usesBesidesSwap(
  device: DeviceIdentity,
  except: readonly number[],
  moment = 0,
): Promise<Use[]> {
  const name = blockName(device)
  const own = [name, ...partitionsOf(name)]
  const { uses } = await lastingUses(name, [process.pid, ...except], moment)
  return uses.filter(({ kind, on }) => kind !== 'swap' || !own.includes(on))
}

/** @returns KiB; undefined: there is no swap on it */
function swappedTo(device: DeviceIdentity): number | undefined {
  const parts = swapsOn(blockName(device))
  return parts.length === 0 ? undefined : parts.reduce((sum, { kibibytes }) => sum + kibibytes, 0)
}

async function endHere(plan: DetachPlan, device: DeviceIdentity, timeout: number): Promise<void> {
  const path = devicePath(device)
  if (plan === 'remove') {
    say(`${path} has no disk any more; removing what is left of it`)
    return await (await disconnect(device))()
  }
  if (plan === 'end') {
    say(`no running nbd-client holds ${path}; ending the device itself`)
    for (const { name } of swapsOn(blockName(device))) {
      if (presenceOf(device) === 'there') await swapOff(`/dev/${name}`, timeout)
    }
    await settleUdev()
    return await (await disconnect(device))()
  }
  say(`ending ${path}, whoever uses it`)
  await endServer(device)
  await pull(device)
  await sayWhoHasIt(device)
}

/** The driver of ublk would wait for its answers. */
async function endServer(device: DeviceIdentity): Promise<void> {
  if (device.front !== 'ublk' || presenceOf(device) !== 'there') return
  const server = ublkDevice.serverOf(device.index)
  if (server === undefined) return
  say(`ending process ${server}, which serves it`)
  process.kill(server, 'SIGKILL')
  await until(() => ublkDevice.serverOf(device.index) === undefined, FORCED_MS)
}

async function askOwner(device: DeviceIdentity, owner: RunningClient, options: DetachOptions): Promise<void> {
  const { timeout, force } = options
  const { pid } = owner
  const path = devicePath(device)
  // The program of a process that has ended is gone, also while nobody has waited for it.
  const ended = () => !existsSync(`/proc/${pid}/exe`)
  const deadline = performance.now() + timeout * 1000
  const rest = () => deadline - performance.now()
  await owner.stop()
  // Who else uses it is looked for when its swap is off, for which all of the time may be needed.
  await until(() => ended() || (force && swappedTo(device) === undefined), rest())
  if (force && !ended() && (await usesBesidesSwap(device, [pid], MOMENT_MS)).length === 0)
    await until(ended, rest())
  if (!ended()) {
    if (!force)
      throw new Error(`${path} is not detached after ${timeout} s: ${await reasonOf(device, owner)}`)
    say(`ending ${path}, whoever uses it`)
    await owner.stop(true)
    if (!(await until(ended, FORCED_MS)))
      throw new Error(`${path} has not ended in ${FORCED_MS / 1000} s: ${await reasonOf(device, owner)}`)
  }
  await sayWhoHasIt(device)
}

/** Of a device that is there though it was to end. */
async function reasonOf(device: DeviceIdentity, { pid, answers }: RunningClient): Promise<string> {
  if (presenceOf(device) !== 'there') return `it has ended, and process ${pid} is giving its memory back`
  if (!(await answers())) return `process ${pid} does not answer any more`
  const swapped = swappedTo(device)
  if (swapped !== undefined)
    return `${swapped} KiB are still swapped out to it; process ${pid} goes on bringing them back, see its messages`
  const uses = await usesBesidesSwap(device, [pid])
  return uses.length > 0
    ? `${describeUses(uses)}; process ${pid} detaches it when that has ended`
    : `process ${pid} is ending it, see its messages`
}

/** The kernel keeps the number of a device that somebody still has, though it does nothing any more. */
async function sayWhoHasIt(device: DeviceIdentity): Promise<void> {
  if (await until(() => presenceOf(device) !== 'there', MOMENT_MS)) return
  const { uses } = usesOf(blockName(device), [process.pid])
  say(`${devicePath(device)} has ended, and is gone when nobody has it any more: ${describeUses(uses)}`)
}

/** The kernel has no event for "the device is gone" that a script could await. @returns false: not in time */
async function until(over: () => boolean, milliseconds: number): Promise<boolean> {
  const deadline = performance.now() + milliseconds
  while (!over()) {
    if (performance.now() > deadline) return false
    await delay(POLL_MS)
  }
  return true
}
