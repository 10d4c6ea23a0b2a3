import { type Handshake, LONGEST_UNIT, MAX_LONGEST } from '../setup/handshake.js'
import type { Version } from '../setup/ring-layout.js'

/** A connection's options for large messages. */
export interface TransferLimits {
  /** bytes of the largest message that `transmit` sends through the ring; undefined: what is faster */
  readonly rendezvousThreshold: number | undefined
  /** bytes of memory for messages that are read from the peer */
  readonly maxTransferMemory: number
  /** bytes of the largest message that is read without being asked for */
  readonly maxMessageSize: number
}

/** The same, now that the peer is known. */
export interface TransferSettings extends TransferLimits {
  readonly rendezvousThreshold: number
  /** the same of a slice of a region, which needs no registration to be read from */
  readonly regionThreshold: number
  /** bytes of the longest message that the peer may send in parts */
  readonly longest: number
}

/** bytes of the largest message that goes through a ring in one frame by default */
const MAX_THRESHOLD = 2 ** 18
/** … and in parts */
const MAX_IN_PARTS = 2 ** 20

/**
 * @param version of the frames
 * @param longestMessage bytes of the longest message that the peer takes through its ring
 */
export function transferSettings(
  limits: TransferLimits,
  version: Version,
  peer: Handshake,
  longestMessage: number,
): TransferSettings {
  const { rendezvousThreshold } = limits
  return {
    ...limits,
    rendezvousThreshold: Math.min(rendezvousThreshold ?? wholeOr(MAX_IN_PARTS, peer), longestMessage),
    regionThreshold: Math.min(rendezvousThreshold ?? wholeOr(0, peer), longestMessage),
    longest: longestInParts(limits, version),
  }
}

/** The default threshold of messages in one frame: as far as four fit, sending goes on while the peer gives the first back. */
function wholeOr(inParts: number, peer: Handshake): number {
  const whole = Math.min(MAX_THRESHOLD, 2 ** (peer.windows.log2Capacity - 2))
  return Math.max(whole, Math.min(inParts, peer.longest))
}

/** bytes of the longest message in parts that an end with these limits takes, as it tells its peer */
export function longestInParts({ maxMessageSize }: TransferLimits, version: Version): number {
  if (version === 2) return 0
  return Math.min(Math.floor(maxMessageSize / LONGEST_UNIT) * LONGEST_UNIT, MAX_LONGEST)
}
