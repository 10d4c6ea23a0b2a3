import { type ConnectionRequest, VerbsError } from '@rdmakit/verbs'
import { RingConnection } from '../connection/connection.js'
import { acceptLink } from './establish.js'
import { encodeRefusal, isRingRequest } from './handshake.js'
import { type AcceptOptions, settings } from './options.js'
import { VERSIONS, type Version } from './ring-layout.js'

/**
 * Accepts a connection request of a ring transport, in a program that has its own Listener and sorts requests with
 * {@link isRingRequest}; other programs use {@link RingServer}. Unlike that, it accepts any epoch of a session:
 * {@link RingConnection.session} has it.
 * @throws VerbsError EPROTO when it is not a ring request or malformed, EMSGSIZE when its ring is
 *   larger than `maxPeerCapacity`; the request has been refused with the reason then. What fails later, once
 *   there is a queue pair, ends the request without one: VerbsError ENOMEM, ETIMEDOUT; the signal's reason
 */
export async function acceptRing(
  request: ConnectionRequest,
  options: AcceptOptions = {},
): Promise<RingConnection> {
  const chosen = settings(options)
  try {
    return new RingConnection(await acceptLink(request, chosen))
  } catch (failure) {
    const reason = () => reasonOf(failure, chosen.maxPeerCapacity)
    refuse(request, isRingRequest(request.privateData) ? reason() : 'not a ring request', chosen.wireVersions)
    throw failure
  }
}

/** Refuses a request; the peer's connect fails with `reason`, at most 48 ASCII characters. */
export function refuseRing(request: ConnectionRequest, reason: string): void {
  refuse(request, reason)
}

/** @internal the same, by who speaks these versions */
export function refuse(
  request: ConnectionRequest,
  reason: string,
  [newest]: readonly Version[] = VERSIONS,
): void {
  request.reject(encodeRefusal(reason, newest))
}

/** At most 48 characters: the options of both ends that do not go together are named. */
function reasonOf(failure: unknown, maxPeerCapacity: number): string {
  if (!(failure instanceof VerbsError)) return 'internal error'
  return failure.code === 'EMSGSIZE'
    ? `EMSGSIZE: capacity > maxPeerCapacity ${maxPeerCapacity}`
    : failure.code
}
