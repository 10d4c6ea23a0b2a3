import { SwapServer, type SwapServerOptions } from '@rdmakit/swap-server'
import type { MemoryRegion } from '@rdmakit/verbs'
import { onTestFinished } from 'vitest'
import { OWN_LOOPBACK } from '../../../../test/own-loopback.js'

export const MIB = 1024 * 1024

let sockets = 0

/** Where nobody listens yet. */
export function socketAddress(): string {
  return `shm:///tmp/rdmakit-test-${process.pid}-${++sockets}.sock`
}

/** Of a new server, over each of the software providers. */
export const ADDRESSES = { iwarp: () => `iwarp://${OWN_LOOPBACK}:0`, shm: socketAddress }

/** A swap-server in this process that lends `slabs` of 1 MiB until the test is over. */
export async function serve(
  slabs: number,
  uri = socketAddress(),
  options: Partial<SwapServerOptions> = {},
): Promise<{ server: SwapServer; uri: string }> {
  const server = new SwapServer({ memory: slabs * MIB, slabSize: MIB, ...options })
  onTestFinished(() => server.close())
  return { server, uri: await server.listen(uri) }
}

/** What `server` lends from now on, slab by slab, for a test to look at and to damage. */
export function lentBy({ store }: SwapServer): readonly MemoryRegion[] {
  const regions: MemoryRegion[] = []
  const allocate = store.allocate.bind(store)
  store.allocate = async (...request) => {
    const slabs = await allocate(...request)
    regions.push(...slabs.map(({ region }) => region))
    return slabs
  }
  return regions
}
