import {
  type ConnectionId,
  ConnectionRejectedError,
  type ConnectionRequest,
  VerbsError,
} from '@rdmakit/verbs'
import { LinkResources } from '../link/link-resources.js'
import { RingLink } from '../link/ring-link.js'
import { longestInParts } from '../transfer/limits.js'
import {
  channelBinding,
  decodeHandshake,
  encodeHandshake,
  type Handshake,
  type Session,
  takesRing,
} from './handshake.js'
import { refused, tooLarge } from './link-errors.js'
import type { Settings } from './options.js'
import type { Version } from './ring-layout.js'

/** Connects with frames of a version; the id is closed when it throws. */
export async function connectLink(id: ConnectionId, version: Version, chosen: Settings): Promise<RingLink> {
  const resources = await LinkResources.make(id, version, chosen).catch((failure) => {
    id.close()
    throw failure
  })
  try {
    const request = handshake(resources, resources.canWriteImmediate, chosen.session)
    const answer = await id.connect({ ...chosen.wait, privateData: request })
    const peer = decodeHandshake(answer, id.description, [version])
    if (peer.session?.id !== chosen.session?.id || peer.session?.epoch !== chosen.session?.epoch)
      throw new VerbsError('EPROTO', 'rdma_connect', id.description, 'the peer answered for another session')
    requireTakes('rdma_connect', id, peer, chosen)
    const link = await RingLink.establish(resources, peer)
    link.channelBinding = channelBinding(request, answer)
    return link
  } catch (failure) {
    await resources.destroy()
    throw failure instanceof ConnectionRejectedError ? refused(id, failure) : failure
  }
}

/**
 * Accepts. When it throws before there is a queue pair, the id is open and can still be rejected; later it is
 * closed, and the peer gets no reason.
 */
export async function acceptLink(
  { id, privateData }: ConnectionRequest,
  chosen: Settings,
): Promise<RingLink> {
  const peer = decodeHandshake(privateData, id.description, chosen.wireVersions)
  requireTakes('rdma_accept', id, peer, chosen)
  const resources = await LinkResources.make(id, peer.version, chosen)
  try {
    const link = await RingLink.establish(resources, peer)
    // The acceptor decides; the connector reads the decision in the flag.
    const answer = handshake(resources, link.usesImmediate, peer.session)
    link.channelBinding = channelBinding(privateData, answer)
    await id.accept({ ...chosen.wait, privateData: answer })
    return link
  } catch (failure) {
    await resources.destroy()
    throw failure
  }
}

/** @throws VerbsError EMSGSIZE when the peer's ring is larger than this end takes */
function requireTakes(verb: string, id: ConnectionId, peer: Handshake, { maxPeerCapacity }: Settings): void {
  if (!takesRing(peer, maxPeerCapacity)) throw tooLarge(verb, id, peer.windows.log2Capacity, maxPeerCapacity)
}

function handshake(
  { version, windows, settings, ring }: LinkResources,
  writeWithImmediate: boolean,
  session: Session | undefined,
): Uint8Array {
  return encodeHandshake({
    version,
    writeWithImmediate,
    windows,
    receiveDepth: settings.receiveDepth,
    longest: longestInParts(settings.transfers, version),
    remoteKey: ring.remoteKey,
    address: ring.address,
    session,
    applicationData: settings.applicationData,
  })
}
