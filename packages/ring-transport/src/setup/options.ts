import { UsageError, type WaitOptions } from '@rdmakit/verbs'
import { integerInRange } from '../base/integer-in-range.js'
import { milliseconds } from '../base/timeout.js'
import { type LivenessOptions, type LivenessSettings, livenessSettings } from '../connection/liveness.js'
import type { PollerChoice } from '../polling/poller-group.js'
import type { TransferLimits } from '../transfer/limits.js'
import {
  MAX_APPLICATION_DATA,
  MAX_EPOCH,
  MAX_LOG2_CAPACITY,
  MAX_RECEIVE_DEPTH,
  MIN_LOG2_CAPACITY,
  MIN_RECEIVE_DEPTH,
  type Session,
  VERSIONS,
  type Version,
} from './handshake.js'

/** What both ends of a ring connection can choose for their side. */
export interface RingOptions extends LivenessOptions {
  /**
   * Who serves the connection: the mode of a poller that connections of a device share, default `guarded`; or a
   * poller, a group, or a function that names either for a device.
   */
  readonly poller?: PollerChoice | undefined
  /**
   * Bytes of the ring that this end receives in: a power of two, 4 KiB … 64 MiB, default 1 MiB. The
   * largest message that the peer can send is half of it less 16 bytes.
   */
  readonly capacity?: number | undefined
  /** Notifications that the peer may send ahead, 8 … 512, default 128. One tells of up to a batch of messages. */
  readonly receiveDepth?: number | undefined
  /** work requests that this end keeps outstanding, 16 … 4096, default 128 */
  readonly sendDepth?: number | undefined
  /** messages that leave with one doorbell at most, 1 … 1024, default 128 */
  readonly batchFrames?: number | undefined
  /**
   * Bytes after which a batch leaves, so that the device works while more is laid out, 64 … 64 MiB,
   * default 32 KiB
   */
  readonly batchBytes?: number | undefined
  /**
   * Work requests of which one is signaled, 1 … a quarter of `sendDepth`, which is the default. Fewer completions
   * cost less; the memory of what is not signaled cannot be used again until one that is completes.
   */
  readonly signalEvery?: number | undefined
  /** bytes wished for inline sends, default 256; the device may grant less */
  readonly maxInlineData?: number | undefined
  /**
   * How the peer learns of a message: `immediate` (default) by RDMA WRITE WITH IMMEDIATE where both
   * devices have it, else as `send`: by a small SEND behind the WRITE, which every device has.
   */
  readonly notification?: 'immediate' | 'send' | undefined
  /** at most 20 bytes for the peer's application, which sees them as {@link RingConnection.applicationData} */
  readonly applicationData?: Uint8Array | undefined
  /**
   * Largest ring of the peer's to accept, bytes, default 16 MiB. This end keeps a staging region of
   * that size for what it sends.
   */
  readonly maxPeerCapacity?: number | undefined
  /**
   * Bytes of the largest message that {@link RingConnection.transmit} sends through the ring, 0 … 64 MiB, at
   * most the peer's `maxMessageSize`; what is larger the peer reads from where it is. Default 1 MiB; of a slice of a
   * region, which needs no registration, 256 KiB or a quarter of the peer's ring, whichever is less. Up to there the
   * ring was faster over iwarp and shm, in time and in throughput. A device that reads by itself wins sooner; measure.
   */
  readonly rendezvousThreshold?: number | undefined
  /**
   * Bytes of memory for messages that are read from the peer, of those that the application holds too, or that
   * come in parts, until they are taken; 64 KiB … 2^40, default 64 MiB. When it is used up, what the peer offers
   * waits, and parts stay in the ring. 0: nothing is read nor taken in parts, and what is offered is refused with
   * EMSGSIZE.
   */
  readonly maxTransferMemory?: number | undefined
  /**
   * Bytes of the largest message that is read from the peer while nobody subscribes to
   * {@link RingConnection.offers}, or that comes in parts, in whole units of 64 KiB and 64 MiB at most; at most and by
   * default `maxTransferMemory`. Larger ones are refused with EMSGSIZE.
   */
  readonly maxMessageSize?: number | undefined
  /**
   * Find uses of messages after their release: `data` is then a copy whose buffer is taken away at the
   * release. Slow; default false, or true when RDMAKIT_RING_DEBUG is 1 in the environment.
   */
  readonly debug?: boolean | undefined
  /** @internal versions of the frames that this end speaks, the one that it offers first; for tests of older peers */
  readonly wireVersions?: readonly Version[] | undefined
}

export interface ConnectOptions extends RingOptions, WaitOptions {
  /**
   * The session that the connection belongs to, and its epoch there, higher than any before; default none.
   * {@link RingClient} chooses both by itself.
   */
  readonly session?: Session | undefined
}
export interface AcceptOptions extends RingOptions, WaitOptions {}

/** Options with their defaults, checked. */
export interface Settings {
  readonly poller: PollerChoice | undefined
  readonly log2Capacity: number
  readonly receiveDepth: number
  readonly sendDepth: number
  readonly batchFrames: number
  readonly batchBytes: number
  readonly signalEvery: number
  readonly maxInlineData: number
  readonly immediate: boolean
  readonly applicationData: Uint8Array
  readonly maxPeerCapacity: number
  readonly transfers: TransferLimits
  readonly debug: boolean
  readonly wireVersions: readonly Version[]
  readonly session: Session | undefined
  readonly liveness: LivenessSettings
  readonly wait: WaitOptions
}

/** @throws UsageError naming the option that is out of range */
export function settings(options: ConnectOptions): Settings {
  if ('copy' in options)
    throw new UsageError(
      'the option copy was removed: messages are copies, and views of the ring are called views (CHANGELOG.md)',
    )
  const { capacity = 2 ** 20, applicationData = new Uint8Array(), notification = 'immediate' } = options
  const log2Capacity = Math.log2(capacity)
  if (!Number.isInteger(log2Capacity) || log2Capacity < MIN_LOG2_CAPACITY || log2Capacity > MAX_LOG2_CAPACITY)
    throw new UsageError(`capacity must be a power of two from 4 KiB to 64 MiB, not ${capacity}`)
  if (applicationData.length > MAX_APPLICATION_DATA)
    throw new UsageError(
      `applicationData is ${applicationData.length} bytes, at most ${MAX_APPLICATION_DATA} fit`,
    )
  if (notification !== 'immediate' && notification !== 'send')
    throw new UsageError(`notification is "immediate" or "send", not "${notification}"`)
  const sendDepth = integerInRange('sendDepth', options.sendDepth ?? 128, 16, 4096)
  return {
    poller: options.poller,
    log2Capacity,
    receiveDepth: integerInRange(
      'receiveDepth',
      options.receiveDepth ?? 128,
      MIN_RECEIVE_DEPTH,
      MAX_RECEIVE_DEPTH,
    ),
    sendDepth,
    batchFrames: integerInRange('batchFrames', options.batchFrames ?? 128, 1, 1024),
    batchBytes: integerInRange('batchBytes', options.batchBytes ?? 32 * 1024, 64, 2 ** 26),
    signalEvery: integerInRange(
      'signalEvery',
      options.signalEvery ?? Math.floor(sendDepth / 4),
      1,
      Math.floor(sendDepth / 4),
    ),
    maxInlineData: integerInRange('maxInlineData', options.maxInlineData ?? 256, 0, 4096),
    immediate: notification === 'immediate',
    applicationData,
    maxPeerCapacity: integerInRange('maxPeerCapacity', options.maxPeerCapacity ?? 2 ** 24, 4096, 2 ** 26),
    transfers: transferLimits(options),
    debug: options.debug ?? process.env.RDMAKIT_RING_DEBUG === '1',
    wireVersions: options.wireVersions ?? VERSIONS,
    session: checked(options.session),
    liveness: livenessSettings(options),
    wait: {
      ...(options.signal === undefined ? {} : { signal: options.signal }),
      ...(options.timeout === undefined ? {} : { timeout: milliseconds('timeout', options.timeout) }),
    },
  }
}

function transferLimits(options: RingOptions): TransferLimits {
  const { rendezvousThreshold, maxTransferMemory = 2 ** 26 } = options
  if (maxTransferMemory !== 0) integerInRange('maxTransferMemory', maxTransferMemory, 65_536, 2 ** 40)
  const { maxMessageSize = maxTransferMemory } = options
  const least = Math.min(1, maxTransferMemory)
  return {
    rendezvousThreshold:
      rendezvousThreshold === undefined
        ? undefined
        : integerInRange('rendezvousThreshold', rendezvousThreshold, 0, 2 ** 26),
    maxTransferMemory,
    maxMessageSize: integerInRange('maxMessageSize', maxMessageSize, least, maxTransferMemory),
  }
}

function checked(session: Session | undefined): Session | undefined {
  if (session === undefined) return undefined
  if (!/^[0-9a-f]{16}$/.test(session.id) || /^0+$/.test(session.id))
    throw new UsageError(`session.id must be 16 hexadecimal digits, not all zero, not "${session.id}"`)
  return { id: session.id, epoch: integerInRange('session.epoch', session.epoch, 1, MAX_EPOCH) }
}
