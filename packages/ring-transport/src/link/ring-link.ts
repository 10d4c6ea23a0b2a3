import type { ConnectionId, Handle, MemoryRegion, ProtectionDomain } from '@rdmakit/verbs'
import type { CallbackScope } from '@rdmakit/verbs/internal'
import type { LivenessSettings } from '../connection/liveness.js'
import type { Poller } from '../polling/poller.js'
import type { LinkSink } from '../receiving/frame-receiver.js'
import type { RingView } from '../receiving/message.js'
import { HEADER, StagingWriter } from '../sending/staging-writer.js'
import type { Handshake } from '../setup/handshake.js'
import { type TransferSettings, transferSettings } from '../transfer/limits.js'
import type { LinkResources } from './link-resources.js'

/** One ring connection as both ends have agreed on it: moves frames, and knows nothing of what they mean. */
export class RingLink {
  readonly id: ConnectionId
  readonly poller: Poller
  readonly protectionDomain: ProtectionDomain
  readonly peer: Handshake
  /** Where outgoing frames are laid out. */
  readonly stagingWriter: StagingWriter
  readonly #resources: LinkResources
  readonly #staging: MemoryRegion
  #channelBinding: Uint8Array | undefined

  private constructor(
    resources: LinkResources,
    peer: Handshake,
    staging: MemoryRegion,
    stagingWriter: StagingWriter,
  ) {
    this.id = resources.id
    this.poller = resources.poller
    this.protectionDomain = resources.protectionDomain
    this.peer = peer
    this.stagingWriter = stagingWriter
    this.#staging = staging
    this.#resources = resources
  }

  /** Makes it able to send, now that the peer's ring is known. */
  static async establish(resources: LinkResources, peer: Handshake): Promise<RingLink> {
    const { connection, settings, version } = resources
    const { native } = resources.poller
    const staging = await resources.stage(peer.windows)
    native.establish(
      connection,
      staging.handle,
      peer.address,
      peer.remoteKey,
      peer.windows.log2Capacity,
      peer.receiveDepth,
      resources.canWriteImmediate && peer.writeWithImmediate,
      peer.windows.count,
    )
    const stagingWriter = new StagingWriter(
      version,
      staging.ownBuffer,
      peer.windows,
      resources.poller.stagingWords(connection),
      resources.poller.hurry,
      {
        reserve: (next, bytes) => native.reserve(connection, next, bytes),
        flush: (next, signaled) => native.flush(connection, next, signaled ? 1 : 0),
        flushLent: (next, signaled, offset, bytes) =>
          native.flushLent(connection, next, signaled ? 1 : 0, offset, bytes),
      },
      { frames: settings.batchFrames, bytes: settings.batchBytes },
    )
    return new RingLink(resources, peer, staging, stagingWriter)
  }

  /** @see RingConnection.channelBinding */
  get channelBinding(): Uint8Array {
    if (this.#channelBinding === undefined) throw new Error('the link is not established')
    return this.#channelBinding
  }

  set channelBinding(binding: Uint8Array) {
    this.#channelBinding = binding
  }

  /** The scope in which callbacks of the connection run. */
  get scope(): CallbackScope {
    return this.#resources.frames.scope
  }

  /** whether messages are taken away at their release */
  get debug(): boolean {
    return this.#resources.settings.debug
  }

  /** Whether notifications go by RDMA WRITE WITH IMMEDIATE, else by SEND. Both ends do the same. */
  get usesImmediate(): boolean {
    return this.#resources.canWriteImmediate && this.peer.writeWithImmediate
  }

  get windows(): LinkResources['windows'] {
    return this.#resources.windows
  }

  /** bytes of the ring of this end */
  get capacity(): number {
    return 1 << this.windows.log2Capacity
  }

  /** bytes of the largest message in one frame */
  get maxMessageLength(): number {
    return (1 << (this.peer.windows.log2Capacity - 1)) - HEADER
  }

  /** bytes of the longest message that the peer takes, in parts where it is too long for a frame */
  get longestMessage(): number {
    return Math.max(this.maxMessageLength, this.peer.longest)
  }

  get maxResponseMemory(): number {
    return this.#resources.settings.maxResponseMemory
  }

  get transfers(): TransferSettings {
    const { settings, version } = this.#resources
    return transferSettings(settings.transfers, version, this.peer, this.longestMessage)
  }

  get liveness(): LivenessSettings {
    return this.#resources.settings.liveness
  }

  /** Delivers earlier arrivals, then later ones as they come. */
  start(sink: LinkSink): void {
    this.#resources.frames.start(sink)
  }

  /** @see FrameReceiver.startSoon */
  startSoon(sink: LinkSink): () => void {
    return this.#resources.frames.startSoon(sink)
  }

  /** @see FrameReceiver.drainer */
  set drainer(drainer: ((view: RingView) => void) | undefined) {
    this.#resources.frames.drainer = drainer
  }

  /** Where frames are laid out, for the program, which may hand it to I/O. */
  get outgoing(): Uint8Array {
    this.#staging.give()
    return this.stagingWriter.bytes
  }

  /** {@link NativePoller.read} */
  read(region: Handle, offset: number, address: bigint, key: number, length: number, tag: number): number {
    return this.poller.native.read(this.#resources.connection, region, offset, address, key, length, tag)
  }

  /** Whether the connection keeps the event loop alive; at first it does. */
  set referenced(on: boolean) {
    this.#resources.referenced = on
  }

  /** Asks the peer's poller for a sign of life: one of {@link SEND}, full while the last is not answered. */
  ping(): number {
    return this.poller.native.ping(this.#resources.connection)
  }

  get counters(): LinkResources['counters'] {
    return this.#resources.counters
  }

  drained(): boolean {
    return this.poller.native.drained(this.#resources.connection)
  }

  /** @see LinkResources.destroy */
  destroy(): Promise<void> {
    return this.#resources.destroy()
  }

  /** @see LinkResources.keep */
  keep(): () => void {
    return this.#resources.keep()
  }
}
