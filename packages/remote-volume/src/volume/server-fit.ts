import { formatSize } from '@rdmakit/operator-kit'
import { type SessionOptions, SwapServerError, SwapServerSession } from '@rdmakit/swap-server'
import { explainUnreachable } from '@rdmakit/swap-server/internal'
import { UsageError } from '@rdmakit/verbs'
import type { VolumeServer } from '../servers/volume-server.js'
import { fits } from '../slabs/placement.js'

/** @throws what opening a session throws, with the option */
export async function openSession(
  uris: readonly string[],
  options: SessionOptions,
): Promise<SwapServerSession> {
  try {
    return await SwapServerSession.open(uris, options)
  } catch (failure) {
    throw explainUnreachable(`--server ${uris.join(',')}`, failure)
  }
}

/** @throws UsageError: servers that cannot be of one volume */
export function commonSlabSize(sessions: readonly SwapServerSession[]): number {
  const [first, ...others] = sessions
  if (first === undefined) throw new UsageError('a volume needs at least one --server')
  for (const other of others) {
    if (other.slabSize !== first.slabSize)
      throw new UsageError(
        `servers differ in slab size: ${first.uri} has ${formatSize(first.slabSize)}, ${other.uri} ${formatSize(other.slabSize)}; start them with the same --slab-size`,
      )
    if (other.context !== first.context)
      throw new UsageError(
        `servers are reached through different devices: ${first.uri} by ${first.context.deviceName}, ${other.uri} by ${other.context.deviceName}; use addresses of one device`,
      )
  }
  return first.slabSize
}

/** @throws UsageError: too few servers; SwapServerError ENOSPC: they hold, or let this tenant have, too little */
export async function checkRoom(
  servers: readonly VolumeServer[],
  options: {
    readonly size: number
    readonly replicas?: number | undefined
    readonly thin?: boolean | undefined
    readonly access?: Pick<SessionOptions, 'tenant'> | undefined
  },
  slabSize: number,
): Promise<void> {
  const { size, replicas = 1, thin = false, access } = options
  if (!Number.isInteger(replicas) || replicas < 1 || replicas > 3)
    throw new UsageError(`a slab has 1 to 3 replicas, not ${replicas}`)
  if (servers.length < replicas)
    throw new UsageError(
      `${replicas} replicas of each slab need ${replicas} servers and there are ${servers.length}; add a --server, or choose fewer --replicas`,
    )
  const epochs = new Set(servers.map(({ session }) => session.epoch))
  if (epochs.size < servers.length)
    throw new UsageError('two --server options lead to the same server; write its addresses with commas')
  const needed = thin ? 1 : Math.ceil(size / slabSize)
  const room = servers.map((server) => server.room)
  if (fits(room, needed, replicas)) return
  const quotas = (
    await Promise.all(servers.map((server) => quotaOf(server, access?.tenant ?? 'default')))
  ).filter((quota) => quota !== undefined)
  const free = room.reduce((sum, each) => sum + each, 0)
  const copies = replicas === 1 ? '' : ` in each of ${replicas} replicas on different servers`
  if (quotas.length > 0)
    throw new SwapServerError(
      'ENOSPC',
      `quota: ${quotas.join('; ')}; the volume needs ${formatSize(needed * slabSize)}${copies}; choose a smaller --size, free what is in use, or ask the server's operator to raise "quota" in its --tenants file`,
    )
  throw new SwapServerError(
    'ENOSPC',
    `server too small: ${servers.map(({ session }) => session.uri).join(', ')} can lend ${formatSize(free * slabSize)}, the volume needs ${formatSize(needed * slabSize)}${copies}; choose a smaller --size, start the server with more --memory, or add a --server`,
  )
}

/**
 * A sentence about the tenant's quota at the server, if less of it is left than is free there; undefined: the
 * quota is no limit.
 */
async function quotaOf({ session }: VolumeServer, tenant: string): Promise<string | undefined> {
  const { tenants, freeSlabs } = await session.query()
  const own = tenants?.find(({ name }) => name === tenant)
  const quota = Number(own?.quotaSlabs ?? 0)
  const used = Number(own?.slabs ?? 0)
  if (own === undefined || quota === 0 || quota - used >= Number(freeSlabs ?? 0)) return undefined
  const size = (slabs: number) => formatSize(slabs * session.slabSize)
  return `tenant "${own.name}" may have ${size(quota)} of ${session.uri}, of which ${size(used)} are used`
}
