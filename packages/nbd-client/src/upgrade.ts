import { deviceIndex } from './attach.js'
import { type RunningClient, runningClients, type Upgraded } from './runtime.js'

/**
 * Lets another process, of a newer version say, go on with an attached device.
 * @param device default: the one that is attached
 * @param command of the successor; default: that of the running process, whose files may be newer now
 * @throws Error: there is none, or the upgrade failed; the device goes on with its process then
 */
export async function upgrade(
  device: string | undefined,
  command: readonly string[] | undefined,
): Promise<Upgraded & { readonly device: string }> {
  const client = await clientOf(device)
  return { device: client.status.target, ...(await client.upgrade(command)) }
}

async function clientOf(device: string | undefined): Promise<RunningClient> {
  const attached = (await runningClients()).filter(({ status }) => status.mode === 'attach')
  if (device !== undefined) {
    const path = `/dev/nbd${deviceIndex(device)}`
    const client = attached.find(({ status }) => status.target === path)
    if (client !== undefined) return client
    throw new Error(
      `no running nbd-client has ${path}; if its process died, "nbd-client attach --state" takes it over`,
    )
  }
  const [client, ...others] = attached
  if (client === undefined) throw new Error('no device is attached')
  if (others.length > 0)
    throw new Error(`name the device: ${attached.map(({ status }) => status.target).join(', ')} are attached`)
  return client
}
