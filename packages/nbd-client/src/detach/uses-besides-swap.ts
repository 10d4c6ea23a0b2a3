import type { DeviceIdentity } from '../kernel/device-identity.js'
import { blockName } from '../kernel/device-name.js'
import { lastingUses, partitionsOf, swapsOn, type Use } from '../kernel/device-uses.js'

/**
 * Swap on it and its partitions is turned off, so that is no use of it.
 * @param moment milliseconds, see {@link lastingUses}
 */
export async function usesBesidesSwap(
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
export function swappedTo(device: DeviceIdentity): number | undefined {
  const parts = swapsOn(blockName(device))
  return parts.length === 0 ? undefined : parts.reduce((sum, { kibibytes }) => sum + kibibytes, 0)
}
