import { UsageError, type WaitOptions } from '@rdmakit/verbs'
import { copyOfBytes, integerInRange } from '@rdmakit/verbs/internal'
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
} from './handshake.js'
import { VERSIONS, type Version } from './ring-layout.js'

/** Options that each end of a ring connection chooses for its side. */
export interface RingOptions extends LivenessOptions {
  /**
   * The poller of the connection: the mode of a poller that the device's connections share (default `guarded`), a poller,
   * a group, or a function that returns any of these for a device.
   */
  readonly poller?: PollerChoice | undefined
  /**
   * Bytes of the ring that this end receives in: a power of two, 4 KiB … 64 MiB, default 4 MiB over iwarp and 1 MiB
   * otherwise. The largest message that the peer can send is half of it less 16 bytes. Of a ring of 64 KiB or more that
   * the device does not pin, no more than 16 to 32 KiB become resident before a peer needs more at once.
   */
  readonly capacity?: number | undefined
  /** Notifications that the peer may send ahead, 8 … 512, default 128. Each announces up to a batch of messages. */
  readonly receiveDepth?: number | undefined
  /** work requests that this end keeps outstanding, 16 … 4096, default 128 */
  readonly sendDepth?: number | undefined
  /** maximum number of messages per doorbell, 1 … 1024, default 512 */
  readonly batchFrames?: number | undefined
  /**
   * Bytes after which a batch is posted, so that the device works while more is laid out, 64 … 64 MiB,
   * default 32 KiB. A quarter of the window of the peer's ring ends a batch, too.
   */
  readonly batchBytes?: number | undefined
  /**
   * One of this many work requests is signaled, 1 … a quarter of `sendDepth`, which is the default. Fewer completions cost
   * less, but the memory of unsignaled requests is reusable only after a later signaled one completes.
   */
  readonly signalEvery?: number | undefined
  /** bytes requested for inline sends, default 256; the device may grant fewer */
  readonly maxInlineData?: number | undefined
  /**
   * How messages are announced to the peer: `immediate` (default), by RDMA WRITE WITH IMMEDIATE if both devices have it,
   * else as with `send`: by a small SEND behind the WRITE, which every device has.
   */
  readonly notification?: 'immediate' | 'send' | undefined
  /** at most 20 bytes for the peer's application, which sees them as {@link RingConnection.applicationData} */
  readonly applicationData?: Uint8Array | undefined
  /**
   * Largest ring of a peer to accept, bytes, default 16 MiB. This end keeps a staging region for it, a third larger where
   * the ring has windows.
   */
  readonly maxPeerCapacity?: number | undefined
  /**
   * Bytes of the largest message that {@link RingConnection.transmit} sends through the ring, 0 … 64 MiB, at
   * most the peer's `maxMessageSize`; the peer reads larger ones from their place. Default 1 MiB; for a slice of a region,
   * which needs no registration, 256 KiB or a quarter of the peer's ring, whichever is less. Up to that size the ring
   * was faster over iwarp and shm, in time and in throughput. A device that reads in hardware pays earlier; measure.
   */
  readonly rendezvousThreshold?: number | undefined
  /**
   * Bytes of memory for messages that are read from the peer, including those that the application holds, and for
   * messages in parts until they are consumed; 64 KiB … 2^40, default 64 MiB. When it is used up, the peer's offers
   * wait, and parts stay in the ring. 0: nothing is read or received in parts, and offers are refused with EMSGSIZE.
   */
  readonly maxTransferMemory?: number | undefined
  /**
   * Bytes of this end's responses that wait until the peer has room for them, 64 KiB … 2^40, default 64 MiB. Beyond half of
   * it no more handlers begin; beyond all of it, which takes handlers that had begun before, the connection is broken
   * (ENOBUFS). A response counts for its bytes plus 512, and must be smaller to wait at all.
   */
  readonly maxResponseMemory?: number | undefined
  /**
   * Bytes of the largest message that is read from the peer while {@link RingConnection.offers} has no subscriber, or
   * that arrives in parts (in whole units of 64 KiB, and 64 MiB at most); at most and by default `maxTransferMemory`.
   * Larger ones are refused with EMSGSIZE.
   */
  readonly maxMessageSize?: number | undefined
  /**
   * Detect uses of messages after their release: `data` is then a copy whose buffer is detached at the release. Slow;
   * default false, or true if RDMAKIT_RING_DEBUG is 1 in the environment.
   */
  readonly debug?: boolean | undefined
  /** @internal versions of the frames that this end speaks, the one that it offers first; for tests of older peers */
  readonly wireVersions?: readonly Version[] | undefined
}

export interface ConnectOptions extends RingOptions, WaitOptions {
  /**
   * The connection's session, and its epoch there, higher than any before; default none. {@link RingClient} chooses both.
   */
  readonly session?: Session | undefined
}
export interface AcceptOptions extends RingOptions, WaitOptions {}

/** Options with their defaults, checked. */
export interface Settings {
  readonly poller: PollerChoice | undefined
  /** undefined: what is usual for the provider */
  readonly log2Capacity: number | undefined
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
  readonly maxResponseMemory: number
  readonly debug: boolean
  readonly wireVersions: readonly Version[]
  readonly session: Session | undefined
  readonly liveness: LivenessSettings
  readonly wait: WaitOptions
}

function log2OfCapacity(capacity: number): number {
  const log2 = Math.log2(capacity)
  if (!Number.isInteger(log2) || log2 < MIN_LOG2_CAPACITY || log2 > MAX_LOG2_CAPACITY)
    throw new UsageError(`capacity must be a power of two from 4 KiB to 64 MiB, not ${capacity}`)
  return log2
}

/** @throws UsageError naming the option that is out of range */
export function settings(options: ConnectOptions): Settings {
  if ('copy' in options)
    throw new UsageError(
      'the option copy was removed: messages are copies, and views of the ring are called views (CHANGELOG.md)',
    )
  const { capacity, notification = 'immediate' } = options
  const applicationData = copyOfBytes('applicationData', options.applicationData ?? new Uint8Array())
  if (applicationData.length > MAX_APPLICATION_DATA)
    throw new UsageError(
      `applicationData is ${applicationData.length} bytes, at most ${MAX_APPLICATION_DATA} fit`,
    )
  if (notification !== 'immediate' && notification !== 'send')
    throw new UsageError(`notification is "immediate" or "send", not "${notification}"`)
  const sendDepth = integerInRange('sendDepth', options.sendDepth ?? 128, 16, 4096)
  return {
    poller: options.poller,
    log2Capacity: capacity === undefined ? undefined : log2OfCapacity(capacity),
    receiveDepth: integerInRange(
      'receiveDepth',
      options.receiveDepth ?? 128,
      MIN_RECEIVE_DEPTH,
      MAX_RECEIVE_DEPTH,
    ),
    sendDepth,
    batchFrames: integerInRange('batchFrames', options.batchFrames ?? 512, 1, 1024),
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
    maxResponseMemory: integerInRange(
      'maxResponseMemory',
      options.maxResponseMemory ?? 2 ** 26,
      65_536,
      2 ** 40,
    ),
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
