import { UsageError } from '@rdmakit/verbs'
import { identifierOf } from '../kernel/device-identity.js'
import { devicePath, parseDevice } from '../kernel/device-name.js'
import { ownerAmong, type RunningClient, runningClients, type Upgraded } from '../report/control.js'

/**
 * Lets another process, of a newer version say, go on with an attached device.
 * @param which the device, or the process that has it; default: the one that is attached
 * @param command of the successor; default: that of the running process, whose files may be newer now
 * @throws Error: there is none, or the upgrade failed; the device goes on with its process then
 */
export async function upgrade(
  which: { readonly device?: string; readonly pid?: number },
  command: readonly string[] | undefined,
): Promise<Upgraded & { readonly device: string }> {
  const client = await clientOf(which)
  return { device: client.status.target, ...(await client.upgrade(command)) }
}

async function clientOf({ device, pid }: { device?: string; pid?: number }): Promise<RunningClient> {
  if (device !== undefined && pid !== undefined) throw new UsageError('give a device or --pid, not both')
  const attached = (await runningClients()).filter(({ status }) => status.mode === 'attach')
  if (device !== undefined) {
    const name = parseDevice(device)
    const path = devicePath(name)
    // One that had a device of this number before has nothing to hand over.
    const client = ownerAmong(attached, path, identifierOf(name) ?? '')
    if (client !== undefined) return client
    throw new Error(
      `no running nbd-client serves ${path}; if its process died, repeat the command that attached it`,
    )
  }
  if (pid !== undefined) {
    const client = attached.find((one) => one.pid === pid)
    if (client !== undefined) return client
    throw new Error(`process ${pid} has no device`)
  }
  const [client, ...others] = attached
  if (client === undefined) throw new Error('no device is attached')
  if (others.length > 0)
    throw new UsageError(
      `several devices are attached, name one: ${attached.map(({ status }) => status.target).join(', ')}`,
    )
  return client
}
