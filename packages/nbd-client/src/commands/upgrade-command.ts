import { setTimeout as delay } from 'node:timers/promises'
import { EXIT, ExitError, type SilentProgram } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import { identifierOf } from '../kernel/device-identity.js'
import { devicePath, parseDevice } from '../kernel/device-name.js'
import { ownerAmong, type RunningClient, runningClients, type Upgraded } from '../report/control.js'

/** For a process that does not answer: each look waits for it as long as every command does. */
const PATIENCE_MS = 30_000
/** From one look to the next. */
const LOOK_MS = 50

/**
 * Lets another process, of a newer version say, go on with an attached device.
 * @param which the device, or the process that has it; default: the one that is attached
 * @param command of the successor; default: that of the running process, whose files may be newer now
 * @throws Error: there is none, or the upgrade failed; the device goes on with its process then; ExitError: a process that
 *   does not answer may have it
 */
export async function upgrade(
  which: { readonly device?: string; readonly pid?: number },
  command: readonly string[] | undefined,
): Promise<Upgraded & { readonly device: string }> {
  const client = await clientOf(which)
  return { device: client.status.target, ...(await client.upgrade(command)) }
}

async function clientOf(which: { device?: string; pid?: number }): Promise<RunningClient> {
  const deadline = performance.now() + PATIENCE_MS
  for (;;) {
    const silent: SilentProgram[] = []
    const running = await runningClients((program) => silent.push(program))
    const client = chosenOf(
      running.filter(({ status }) => status.mode === 'attach'),
      which,
    )
    const maybe = silent.find(({ pid }) => which.pid === undefined || which.pid === pid)
    const isNamed = which.pid !== undefined || which.device !== undefined
    // The device of a process that does not answer may be another one: then this is not the only one.
    if (client !== undefined && (isNamed || maybe === undefined)) return client
    if (maybe === undefined) throw new Error(noneOf(which))
    // A machine that is short of memory may keep a process from answering for a while.
    if (performance.now() > deadline)
      throw new ExitError(
        client === undefined
          ? `${noneOf(which)}; process ${maybe.pid} may have it, and does not answer: ${maybe.reason}. Its device goes on as before; try again`
          : `${client.status.target} may not be the only device: process ${maybe.pid} does not answer: ${maybe.reason}; name the device`,
        EXIT.unavailable,
      )
    await delay(LOOK_MS)
  }
}

/** @returns undefined: it is not among them */
function chosenOf(
  attached: readonly RunningClient[],
  { device, pid }: { device?: string; pid?: number },
): RunningClient | undefined {
  if (device !== undefined && pid !== undefined) throw new UsageError('give a device or --pid, not both')
  if (pid !== undefined) return attached.find((one) => one.pid === pid)
  if (device !== undefined) {
    const name = parseDevice(device)
    // One that had a device of this number before has nothing to hand over.
    return ownerAmong(attached, devicePath(name), identifierOf(name) ?? '')
  }
  if (attached.length > 1)
    throw new UsageError(
      `several devices are attached, name one: ${attached.map(({ status }) => status.target).join(', ')}`,
    )
  return attached[0]
}

function noneOf({ device, pid }: { device?: string; pid?: number }): string {
  if (pid !== undefined) return `process ${pid} has no device`
  if (device === undefined) return 'no device is attached'
  return `no running nbd-client serves ${devicePath(parseDevice(device))}; if its process died, repeat the command that attached it`
}
