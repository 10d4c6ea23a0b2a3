import type { VolumeEngine } from '../engine/volume-engine.js'

/** Reads and writes pages of a volume by its front, as a client does. */
export interface PageClient {
  /** @returns undefined: an I/O error */
  read(page: number): Promise<Uint8Array | undefined>
  /** @returns false: an I/O error */
  write(page: number, bytes: Uint8Array): Promise<boolean>
}

/**
 * Gives all replicas of the pages whose WRITE the last process did not live to answer the bytes that one of them has:
 * the kernel repeats such a WRITE, but a client of an export need not, and would read now one and now the other. If this
 * process dies meanwhile, the next one goes on with the pages that are left, for an engine with the option `resync`.
 * No other client may write before this has resolved.
 * @param use lends a client, and takes it back
 * @throws Error: the engine ends, or a page that can be read cannot be written; it stays for the next process
 */
export async function resyncReplicas(
  engine: Pick<VolumeEngine, 'leftClaimed' | 'nextToResync'>,
  use: (work: (client: PageClient) => Promise<void>) => Promise<void>,
): Promise<void> {
  if (engine.leftClaimed.length === 0) return
  await use(async (client) => {
    for (let page = engine.nextToResync(); page !== undefined; page = engine.nextToResync())
      await resyncPage(client, page)
  })
}

async function resyncPage(client: PageClient, page: number): Promise<void> {
  const found = await client.read(page)
  // No copy is left, which a reader is told too.
  if (found === undefined || (await client.write(page, found))) return
  // Its last server has failed in between.
  if ((await client.read(page)) === undefined) return
  throw new Error(
    `page ${page}, which was being written when the last process ended, cannot be written again`,
  )
}
