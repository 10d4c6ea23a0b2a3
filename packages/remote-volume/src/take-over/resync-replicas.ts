import type { VolumeEngine } from '../engine/volume-engine.js'

/** Reads and writes pages of a volume by its front, as a client does. */
export interface PageClient {
  /** @returns undefined: an I/O error */
  read(page: number): Promise<Uint8Array | undefined>
  write(page: number, bytes: Uint8Array): Promise<void>
}

/**
 * Gives all replicas of the pages whose WRITE the last process did not live to answer the bytes that one of them has:
 * the kernel repeats such a WRITE, but a client of an export need not, and would read now one and now the other.
 * @param use lends a client, and takes it back
 * @throws Error: the engine ends
 */
export async function resyncReplicas(
  { leftClaimed: pages }: Pick<VolumeEngine, 'leftClaimed'>,
  use: (work: (client: PageClient) => Promise<void>) => Promise<void>,
): Promise<void> {
  if (pages.length === 0) return
  await use(async (client) => {
    for (const page of pages) {
      const found = await client.read(page)
      // No copy is left, which a reader is told too.
      if (found !== undefined) await client.write(page, found)
    }
  })
}
