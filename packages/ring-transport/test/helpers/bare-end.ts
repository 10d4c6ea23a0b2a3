import type { ConnectionId, MemoryRegion } from '@rdmakit/verbs'
import { decodeHandshake, encodeHandshake, type Handshake } from '../../src/setup/handshake.js'
import { type Version, Windows } from '../../src/setup/ring-layout.js'

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
      windows: new Windows(12, 1),
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
