import { join } from 'node:path'
import { guestScripts } from '../base/paths.js'
import type { Shell } from '../base/shell.js'
import { withSwapOn } from './swap.js'

export interface SwapPlace {
  /** Where the memory is, and where swap is on. They may be the same shell. */
  server: Shell
  client: Shell
  /** Address of the server, as the client reaches it. */
  address: string
  /** Size of the swap space. */
  bytes: number
}

/** A way to swap to another machine's memory: ours, or one that it is compared with. */
export interface SwapPath {
  readonly name: string
  /** What stands in the command line of the server's one process; undefined for a target in the kernel. */
  readonly serverProcess?: string
  /** Swaps over it while `body` runs. What was brought up for it is taken down again, also after a failure. */
  withSwap<T>(place: SwapPlace, body: () => Promise<T>): Promise<T>
}

/**
 * A path that one shell script of `guest/` brings up and takes down: `serve ADDRESS BYTES …` and `stop` in the
 * server, `attach ADDRESS …`, which prints the device, and `detach` in the client. `stop` takes down whatever
 * part of it is there.
 */
export function scriptedSwap(
  path: Pick<SwapPath, 'name' | 'serverProcess'>,
  script: string,
  ...more: readonly string[]
): SwapPath {
  const step = (...words: readonly string[]) => ['sh', join(guestScripts, script), ...words]
  return {
    ...path,
    async withSwap({ server, client, address, bytes }, body) {
      try {
        await server.run(step('serve', address, String(bytes), ...more))
        const device = (await client.run(step('attach', address, ...more))).trim()
        try {
          return await withSwapOn(client, device, body)
        } finally {
          await client.run(step('detach'))
        }
      } finally {
        await server.run(step('stop'))
      }
    },
  }
}
