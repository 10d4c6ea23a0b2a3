import { join } from 'node:path'
import { guestScripts } from './paths.js'
import type { Shell } from './shell.js'
import { type Walk, type WalkOptions, walkArray, withSwapOn } from './swap.js'

export interface NbdkitSwapOptions extends WalkOptions {
  /** Address of the server, as the client reaches it. */
  address: string
  device?: string
  /** Size of the memory that the server exports; twice the array's by default. */
  exportBytes?: number
}

/**
 * The peer that remote swap is compared with: the kernel's own nbd-client over TCP, and nbdkit's
 * memory plugin behind it. Server and client may be the same shell. nbd.sh must have run in the client.
 */
export async function walkOverNbdkit(
  server: Shell,
  client: Shell,
  options: NbdkitSwapOptions,
): Promise<Walk> {
  const { address, device = '/dev/nbd0', exportBytes = 2 * options.bytes } = options
  const script = join(guestScripts, 'nbdkit-swap.sh')
  await server.run(['sh', script, 'serve', address, String(exportBytes)])
  try {
    await client.run(['sh', script, 'attach', address, device])
    try {
      return await withSwapOn(client, device, () => walkArray(client, options))
    } finally {
      await client.run(['sh', script, 'detach', device])
    }
  } finally {
    await server.run(['sh', script, 'stop'])
  }
}
