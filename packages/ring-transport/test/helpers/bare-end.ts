import type { ConnectionId, MemoryRegion } from '@rdmakit/verbs'
import { decodeHandshake, encodeHandshake, type Handshake, type Version } from '../../src/setup/handshake.js'

/** Connects `id`, with its queue pair, as a ring end of 4 KiB at the start of `region`. @returns the ring of the other end */
export async function connectBare(
  id: ConnectionId,
  region: MemoryRegion,
  version: Version,
): Promise<Handshake> {
  const answer = await id.connect({
    privateData: encodeHandshake({
      version,
      writeWithImmediate: true,
      log2Capacity: 12,
      receiveDepth: 8,
      longest: 0,
      remoteKey: region.remoteKey,
      address: region.address,
      session: undefined,
      applicationData: new Uint8Array(),
    }),
  })
  return decodeHandshake(answer, 'test')
}
