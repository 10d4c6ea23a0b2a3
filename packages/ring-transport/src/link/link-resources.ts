import {
  type ConnectionId,
  type MemoryOptions,
  type MemoryRegion,
  type ProtectionDomain,
  VerbsError,
} from '@rdmakit/verbs'
import { within } from '@rdmakit/verbs/internal'
import { DEFAULT_TIMEOUT_MS } from '../base/timeout.js'
import { READS } from '../native.js'
import type { Poller } from '../polling/poller.js'
import { pollerFor } from '../polling/poller-group.js'
import { FrameReceiver } from '../receiving/frame-receiver.js'
import type { Settings } from '../setup/options.js'
import { unitLog2, type Version, Windows } from '../setup/ring-layout.js'
import { LinkCounters } from './link-counters.js'

/** Work requests for control alone, which so never waits for data (native/ring/wire/wire.h). */
const RESERVED = 6
/** … and receives: one more for each window but the first that a ring may have (kReceivesForControl). */
const RESERVED_RECEIVES = RESERVED + 7
/** Behind the ring and behind the staging region: 8 bytes for each notification and credit under way. */
const WORD = 8
/**
 * A connection that says little takes little memory: 1,000 that are idle took 2 GiB. So of what has windows the pages are
 * no huge ones, whose first would be 2 MiB.
 */
function byUse({ count }: Windows): MemoryOptions {
  return { populated: false, hugePages: count > 1 ? 'none' : 'transparent' }
}

/**
 * The verbs objects of one ring connection: its own protection domain (so that no other peer's keys reach its ring), the
 * ring, the queue pair at a poller, and the staging region that mirrors the peer's ring once that is known.
 */
export class LinkResources {
  readonly id: ConnectionId
  readonly settings: Settings
  readonly version: Version
  /** of its own ring */
  readonly windows: Windows
  readonly poller: Poller
  readonly protectionDomain: ProtectionDomain
  readonly ring: MemoryRegion
  readonly frames: FrameReceiver
  /** the number at the poller */
  readonly connection: number
  readonly counters: LinkCounters
  readonly #entries: number
  #staging: MemoryRegion | undefined
  #freed = false
  #kept = 0

  private constructor(
    id: ConnectionId,
    settings: Settings,
    version: Version,
    poller: Poller,
    protectionDomain: ProtectionDomain,
    ring: MemoryRegion,
    windows: Windows,
  ) {
    this.id = id
    this.settings = settings
    this.version = version
    this.poller = poller
    this.protectionDomain = protectionDomain
    this.ring = ring
    this.windows = windows
    const halfOf = (window: number) => 2 ** (windows.log2Of(window) - 1 - unitLog2(version))
    const { receiveDepth, sendDepth, signalEvery } = settings
    this.frames = new FrameReceiver(id, poller, ring, halfOf, settings.debug)
    this.#entries = receiveDepth + sendDepth + RESERVED + RESERVED_RECEIVES + READS
    const queuePair = id.createQueuePair(protectionDomain, {
      sendQueue: poller.queue,
      maxSend: sendDepth + RESERVED + READS,
      maxReceive: receiveDepth + RESERVED_RECEIVES,
      maxInlineData: settings.maxInlineData,
    })
    this.connection = poller.attach(
      this.frames,
      this.#entries,
      queuePair.handle,
      ring.handle,
      windows.log2Capacity,
      receiveDepth,
      sendDepth,
      signalEvery,
      version,
      windows.count,
    )
    this.frames.connection = this.connection
    this.counters = new LinkCounters(poller.native, this.connection)
  }

  /** All but what depends on the peer. When it throws, the id is as it was. */
  static async make(id: ConnectionId, version: Version, chosen: Settings): Promise<LinkResources> {
    const pd = id.context.allocateProtectionDomain()
    try {
      const windows = Windows.of(chosen.log2Capacity, version, id.provider)
      const words = chosen.receiveDepth + RESERVED_RECEIVES + RESERVED
      const length = windows.bytes + words * WORD
      const ring = await inTime(pd.allocateMemoryRegion(length, ['remote-write'], byUse(windows)), id, chosen)
      // Chosen when the connection is about to count there, so that many at once are spread as well.
      const poller = pollerFor(chosen.poller, id.context)
      return new LinkResources(id, chosen, version, poller, pd, ring, windows)
    } catch (failure) {
      // The ring and the queue pair go with their protection domain.
      pd.close()
      throw failure
    }
  }

  /** Whether this end can notify by RDMA WRITE WITH IMMEDIATE. */
  get canWriteImmediate(): boolean {
    return this.settings.immediate && this.id.context.capabilities.writeWithImmediate
  }

  /** Memory that mirrors a ring of the peer's. */
  async stage(windows: Windows): Promise<MemoryRegion> {
    const length = windows.bytes + this.settings.sendDepth * WORD
    const allocated = this.protectionDomain.allocateMemoryRegion(length, ['local-write'], byUse(windows))
    this.#staging = await inTime(allocated, this.id, this.settings)
    return this.#staging
  }

  /** Whether the connection keeps the event loop alive; at first it does. */
  set referenced(on: boolean) {
    if (this.#freed) return
    this.poller.hold(this.connection, on)
    if (on) this.id.ref()
    else this.id.unref()
  }

  /**
   * Breaks the connection and frees everything. Arrivals are passed on before it resolves. The ring itself
   * stays mapped until the last retained message is released.
   */
  async destroy(): Promise<void> {
    // The remaining waits are short, and the owner's.
    this.poller.hold(this.connection, true)
    this.poller.native.detach(this.connection)
    await this.frames.detached
    this.counters.keep()
    this.poller.native.release(this.connection)
    this.poller.forget(this.connection, this.#entries)
    this.#freed = true
    this.frames.onReleased = () => this.#closeUnused()
    this.id.close()
    this.#staging?.close()
    this.#closeUnused()
  }

  /** Keeps memory of the protection domain, also beyond {@link destroy}, until the returned function is called. */
  keep(): () => void {
    this.#kept++
    return () => {
      this.#kept--
      if (this.#freed) this.#closeUnused()
    }
  }

  #closeUnused(): void {
    if (this.frames.unreleased.count > 0 || this.#kept > 0) return
    this.ring.close()
    this.protectionDomain.close()
  }
}

/**
 * Memory is mapped on a thread of libuv's pool, which other work may keep busy: the wait for it has the same
 * time limit as the rest. A later result is closed with its protection domain.
 */
function inTime<T>(allocated: Promise<T>, id: ConnectionId, { wait }: Settings): Promise<T> {
  const { signal, timeout = DEFAULT_TIMEOUT_MS } = wait
  const late = () =>
    new VerbsError('ETIMEDOUT', 'ibv_reg_mr', id.description, 'no memory could be mapped yet')
  return within(allocated, timeout, late, signal)
}
