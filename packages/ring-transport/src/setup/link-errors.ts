// Errors that end a link or prevent it, in the words that programs get.
import { type ConnectionId, ConnectionRejectedError, VerbsError } from '@rdmakit/verbs'
import { decodeRefusal, refusedBy } from './handshake.js'

/** The ring of the peer, which this end would have to mirror. */
export function tooLarge(verb: string, id: ConnectionId, log2Capacity: number, most: number): VerbsError {
  const detail =
    `the peer's ring is 2^${log2Capacity} bytes (its option capacity), ` +
    `and this end takes ${most} (its option maxPeerCapacity)`
  return new VerbsError('EMSGSIZE', verb, id.description, detail)
}

/** The connector's error for a refusal, in the acceptor's words if it gave any. */
export function refused(id: ConnectionId, failure: ConnectionRejectedError): VerbsError {
  const reason = decodeRefusal(failure.privateData)
  return reason === undefined
    ? failure
    : new ConnectionRejectedError(id.description, failure.privateData, `the peer refused: ${reason}`)
}

/** The version that the acceptor which refused a connector speaks, and none that is newer; undefined: it is no refusal. */
export function versionOfRefusal(failure: unknown): number | undefined {
  return failure instanceof ConnectionRejectedError ? refusedBy(failure.privateData) : undefined
}

/** Whether the acceptor takes only smaller rings; see {@link tooLarge}. */
export function refusesCapacity(failure: unknown): boolean {
  return (
    failure instanceof ConnectionRejectedError && /^EMSGSIZE/.test(decodeRefusal(failure.privateData) ?? '')
  )
}

/** @param kind 0: a work completion with status `detail`; 1: the peer broke rule `detail` of the protocol */
export function brokenReason(id: ConnectionId, kind: number, detail: number): VerbsError {
  return kind === 0
    ? new VerbsError('ECONNRESET', 'ibv_poll_cq', id.description, `the queue pair failed, status ${detail}`)
    : new VerbsError('EPROTO', 'receive', id.description, `the peer sent ${VIOLATIONS[detail] ?? 'nonsense'}`)
}

/** In the order of `Violation` in native/ring/wire/wire.h. */
const VIOLATIONS = [
  'a notification of nothing, or of more than the ring holds',
  'a credit for more than it was sent',
  'a frame that reaches beyond what was published',
  'a frame of unknown type or flags',
  'a pad that does not end at the ring’s end',
  'a notification of the wrong size',
  'a second ping before the first was answered',
  'a change of the window where there is none',
]
