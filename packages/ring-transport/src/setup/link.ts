import {
  type ConnectionId,
  ConnectionRejectedError,
  type ConnectionRequest,
  type Handle,
  type MemoryRegion,
  type ProtectionDomain,
  VerbsError,
} from '@rdmakit/verbs'
import { CallbackScope, deferred, within } from '@rdmakit/verbs/internal'
import { DEFAULT_TIMEOUT_MS } from '../base/timeout.js'
import type { LivenessSettings } from '../connection/liveness.js'
import { named } from '../connection/statistics.js'
import { GRANT_ROOM, native, READS, TYPE } from '../native.js'
import type { FrameSink, Poller } from '../polling/poller.js'
import { pollerFor } from '../polling/poller-group.js'
import { type MessageSource, RingMessage, RingView } from '../receiving/message.js'
import { HeldFrames } from '../receiving/unreleased-frames.js'
import { HEADER, Lane, unitLog2 } from '../sending/staging-writer.js'
import type { TransferSettings } from '../transfer/transfers.js'
import {
  channelBinding,
  decodeHandshake,
  encodeHandshake,
  type Handshake,
  LONGEST_UNIT,
  MAX_LONGEST,
  type Session,
  type Version,
} from './handshake.js'
import { brokenReason, refused, tooLarge } from './link-errors.js'
import type { Settings } from './options.js'

/** What a link tells the connection above it. */
export interface LinkSink {
  message(type: number, message: RingMessage): void
  /** `room`: the frame that was refused fits now; else something was posted, credited or completed */
  writable(room: boolean): void
  /** the RDMA READ of that tag has completed, with an ibv_wc_status */
  read(tag: number, status: number): void
  broken(reason: VerbsError): void
}

/** Work requests and receives for control alone, which so never waits for data (native/ring/wire.h). */
const RESERVED = 6
/** Behind the ring and behind the staging region: 8 bytes for each notification and credit under way. */
const WORD = 8
/** A connection that says little takes little memory: 1,000 that are idle took 2 GiB. */
const BY_USE = { populated: false }
/** bytes of the largest message that goes through a ring in one frame when nobody says otherwise */
const MAX_THRESHOLD = 2 ** 18
/** … and in parts */
const MAX_IN_PARTS = 2 ** 20

/** a connection's counters, one after another */
const COUNTS = new Float64Array(native.connectionCounters.length)
const counter = (name: string) => native.connectionCounters.indexOf(name)
const HEARD = ['notifications_received', 'credits_received', 'pings_received'].map(counter)
const ACTIVITY = ['frames_received', 'notifications_sent'].map(counter)

/**
 * The verbs objects of one ring connection: its own protection domain (so that no other peer's keys
 * reach its ring), the ring, the staging region that mirrors the peer's ring, and the queue pair.
 */
export class Link implements FrameSink, MessageSource {
  readonly id: ConnectionId
  readonly poller: Poller
  readonly memory: Uint8Array
  readonly debug: boolean
  /** what callbacks of the connection run in: where it was made */
  readonly scope = new CallbackScope('RingConnection')
  readonly held = new HeldFrames()
  readonly protectionDomain: ProtectionDomain
  readonly #ring: MemoryRegion
  readonly #settings: Settings
  readonly #entries: number
  readonly #detached = deferred<void>()
  readonly #version: Version
  /** units */
  readonly #halfRing: number
  readonly #view = new RingView()
  #drainer: ((view: RingView) => void) | undefined
  #lane: Lane | undefined
  #connection = -1
  #staging: MemoryRegion | undefined
  #peer: Handshake | undefined
  #channelBinding: Uint8Array | undefined
  #sink: LinkSink | undefined
  #early: (() => void)[] = []
  #freed = false
  #kept = 0
  #lastCounts: Float64Array | undefined

  private constructor(
    id: ConnectionId,
    poller: Poller,
    pd: ProtectionDomain,
    ring: MemoryRegion,
    version: Version,
    chosen: Settings,
  ) {
    this.id = id
    this.poller = poller
    this.protectionDomain = pd
    this.#ring = ring
    this.#settings = chosen
    this.#entries = chosen.receiveDepth + chosen.sendDepth + 2 * RESERVED + READS
    this.#version = version
    this.#halfRing = 2 ** (chosen.log2Capacity - 1 - unitLog2(version))
    this.debug = chosen.debug
    this.memory = new Uint8Array(ring.ownBuffer)
  }

  /** Connects with frames of a version; the id is closed when it throws. */
  static async connect(id: ConnectionId, version: Version, chosen: Settings): Promise<Link> {
    const link = await Link.#make(id, version, chosen).catch((failure) => {
      id.close()
      throw failure
    })
    try {
      const request = link.#handshake(link.#canWriteImmediate, chosen.session)
      const answer = await id.connect({ ...chosen.wait, privateData: request })
      const peer = decodeHandshake(answer, id.description, [version])
      if (peer.session?.id !== chosen.session?.id || peer.session?.epoch !== chosen.session?.epoch)
        throw new VerbsError('EPROTO', 'rdma_connect', id.description, 'the peer answers another session')
      link.#channelBinding = channelBinding(request, answer)
      await link.#establish(peer)
      return link
    } catch (failure) {
      await link.destroy()
      throw failure instanceof ConnectionRejectedError ? refused(id, failure) : failure
    }
  }

  /**
   * Accepts. When it throws before there is a queue pair, the id is open and can still be rejected; later it is
   * closed, and the peer gets no reason.
   */
  static async accept({ id, privateData }: ConnectionRequest, chosen: Settings): Promise<Link> {
    const peer = decodeHandshake(privateData, id.description, chosen.wireVersions)
    if (2 ** peer.log2Capacity > chosen.maxPeerCapacity)
      throw tooLarge('rdma_accept', id, peer.log2Capacity, chosen.maxPeerCapacity)
    const link = await Link.#make(id, peer.version, chosen)
    try {
      await link.#establish(peer)
      // The acceptor decides; the connector reads the decision in the flag.
      const answer = link.#handshake(link.usesImmediate, peer.session)
      link.#channelBinding = channelBinding(privateData, answer)
      await id.accept({ ...chosen.wait, privateData: answer })
      return link
    } catch (failure) {
      await link.destroy()
      throw failure
    }
  }

  static async #make(id: ConnectionId, version: Version, chosen: Settings): Promise<Link> {
    const pd = id.context.allocateProtectionDomain()
    try {
      const words = chosen.receiveDepth + 2 * RESERVED
      const length = 2 ** chosen.log2Capacity + words * WORD
      const ring = await inTime(pd.allocateMemoryRegion(length, ['remote-write'], BY_USE), id, chosen)
      // Chosen when the connection is about to count there, so that many at once are spread as well.
      const poller = pollerFor(chosen.poller, id.context)
      const link = new Link(id, poller, pd, ring, version, chosen)
      const queuePair = id.createQueuePair(pd, {
        sendQueue: poller.queue,
        maxSend: chosen.sendDepth + RESERVED + READS,
        maxReceive: chosen.receiveDepth + RESERVED,
        maxInlineData: chosen.maxInlineData,
      })
      const { log2Capacity, receiveDepth, sendDepth } = chosen
      link.#connection = poller.attach(
        queuePair.handle,
        ring.handle,
        log2Capacity,
        receiveDepth,
        sendDepth,
        chosen.signalEvery,
        version,
        link.#entries,
        link,
      )
      return link
    } catch (failure) {
      // The ring and the queue pair go with their protection domain.
      pd.close()
      throw failure
    }
  }

  /** Starts what has come meanwhile, then passes everything on as it comes. */
  start(sink: LinkSink): void {
    this.#sink = sink
    const early = this.#early
    this.#early = []
    for (const event of early) event()
  }

  get peer(): Handshake {
    if (this.#peer === undefined) throw new Error('the link is not established')
    return this.#peer
  }

  /** @see RingConnection.channelBinding */
  get channelBinding(): Uint8Array {
    if (this.#channelBinding === undefined) throw new Error('the link is not established')
    return this.#channelBinding
  }

  /** Whether notifications go by RDMA WRITE WITH IMMEDIATE, else by SEND. Both ends do the same. */
  get usesImmediate(): boolean {
    return this.#canWriteImmediate && this.peer.writeWithImmediate
  }

  /** bytes of the ring of this end */
  get capacity(): number {
    return 1 << this.#settings.log2Capacity
  }

  /** bytes */
  get maxMessageLength(): number {
    return (1 << (this.peer.log2Capacity - 1)) - HEADER
  }

  /** Where outgoing frames are laid out. */
  get lane(): Lane {
    if (this.#lane === undefined) throw new Error('the link is not established')
    return this.#lane
  }

  get transfers(): TransferSettings {
    const { transfers } = this.#settings
    const most = this.longestMessage
    const rendezvousThreshold = Math.min(transfers.rendezvousThreshold ?? this.#wholeOr(MAX_IN_PARTS), most)
    const regionThreshold = Math.min(transfers.rendezvousThreshold ?? this.#wholeOr(0), most)
    return { ...transfers, rendezvousThreshold, regionThreshold, longest: this.#longest }
  }

  /** bytes of the longest message that the peer takes, in parts where it is too long for a frame */
  get longestMessage(): number {
    return Math.max(this.maxMessageLength, this.peer.longest)
  }

  /** The default threshold of messages in one frame: as far as four fit, sending goes on while the peer gives the first back. */
  #wholeOr(inParts: number): number {
    const whole = Math.min(MAX_THRESHOLD, 2 ** (this.peer.log2Capacity - 2))
    return Math.max(whole, Math.min(inParts, this.peer.longest))
  }

  /** bytes of the longest message in parts that this end takes, as it tells its peer */
  get #longest(): number {
    if (this.#version === 2) return 0
    const { maxMessageSize } = this.#settings.transfers
    return Math.min(Math.floor(maxMessageSize / LONGEST_UNIT) * LONGEST_UNIT, MAX_LONGEST)
  }

  /** {@link NativePoller.read} */
  read(region: Handle, offset: number, address: bigint, key: number, length: number, tag: number): number {
    return this.poller.native.read(this.#connection, region, offset, address, key, length, tag)
  }

  get liveness(): LivenessSettings {
    return this.#settings.liveness
  }

  /** Whether the connection keeps the event loop alive; at first it does. */
  set referenced(on: boolean) {
    if (this.#freed) return
    this.poller.hold(this.#connection, on)
    if (on) this.id.ref()
    else this.id.unref()
  }

  /** Asks the peer's poller for a sign of life: one of {@link SEND}, full while the last is not answered. */
  ping(): number {
    return this.poller.native.ping(this.#connection)
  }

  /** Notifications, credits, pings and pongs of the peer so far. */
  heard(): number {
    return this.#sum(HEARD)
  }

  /** Frames received and batches sent so far. */
  activity(): number {
    return this.#sum(ACTIVITY)
  }

  /** All counters by their names; after the end as they were then. */
  counters(): Record<string, number> {
    if (this.#lastCounts === undefined) this.poller.native.counters(this.#connection, COUNTS)
    return named(native.connectionCounters, this.#lastCounts ?? COUNTS)
  }

  #sum(counters: readonly number[]): number {
    this.poller.native.counters(this.#connection, COUNTS)
    return counters.reduce((sum, at) => sum + (COUNTS[at] as number), 0)
  }

  drained(): boolean {
    return this.poller.native.drained(this.#connection)
  }

  /**
   * Data that comes while the poller is drained goes straight to `drainer`, as a view that is used again.
   * Undefined: to the sink, as messages.
   */
  set drainer(drainer: ((view: RingView) => void) | undefined) {
    if (drainer !== undefined) this.give()
    this.#drainer = drainer
  }

  /** @see MessageSource.give */
  give(): void {
    this.#ring.give()
  }

  /** Where frames are laid out, for the program, which may hand it to I/O. */
  get outgoing(): Uint8Array {
    this.#staging?.give()
    return this.lane.bytes
  }

  get isDrained(): boolean {
    return this.#drainer !== undefined
  }

  // Hot path for data with a drainer: nothing is allocated.
  frame(
    type: number,
    offset: number,
    length: number,
    end: number,
    correlation: number,
    immediate: number,
  ): void {
    if (type === TYPE.data && this.#drainer !== undefined) {
      const view = this.#view
      view.set(this.memory, offset, length, immediate, this.debug)
      try {
        this.#drainer(view)
      } finally {
        view.clear()
        if (this.held.pass(end)) this.#credit()
      }
      return
    }
    if (type === TYPE.pad) {
      if (this.held.pass(end)) this.#credit()
      return
    }
    if (this.#drainer === undefined) this.#take(type, offset, length, end, correlation, immediate)
    // Who drains gets data in a context of his own; all else is the connection's.
    else this.scope.run(() => this.#take(type, offset, length, end, correlation, immediate))
  }

  #take(
    type: number,
    offset: number,
    length: number,
    end: number,
    correlation: number,
    immediate: number,
  ): void {
    switch (type) {
      case TYPE.detached:
        this.#detached.resolve()
        break
      case TYPE.writable:
        this.#pass((sink) => sink.writable((offset & GRANT_ROOM) !== 0))
        break
      case TYPE.read:
        this.#pass((sink) => sink.read(correlation >>> 0, offset))
        break
      case TYPE.broken: {
        const reason = brokenReason(this.id, offset, length)
        this.#pass((sink) => sink.broken(reason))
        break
      }
      default: {
        const message = new RingMessage(this, offset, length, end, correlation, immediate)
        this.held.add(message)
        if (this.#sink !== undefined) this.#sink.message(type, message)
        else this.#pass((sink) => sink.message(type, message))
      }
    }
  }

  released(): void {
    if (!this.held.advance()) return
    if (this.#freed) this.#closeUnused()
    else this.#credit()
  }

  #credit(): void {
    // Half a ring at a time: the rule that native/ring/wire.h proves free of deadlock. What is credited
    // may be read late, which asks once more than needed and never once less.
    const { released } = this.held
    const credited = this.poller.credited(this.#connection)
    if ((released - credited) >>> 0 >= this.#halfRing) this.poller.returnCredit(this.#connection, released)
  }

  /**
   * Breaks the connection and frees everything. What has arrived is passed on before it resolves.
   * The ring itself stays mapped until the last message that is retained is released.
   */
  async destroy(): Promise<void> {
    if (this.#connection >= 0) {
      // What is to be awaited from here on is short, and its owner's.
      this.poller.hold(this.#connection, true)
      this.poller.native.detach(this.#connection)
      await this.#detached.promise
      this.#lastCounts = new Float64Array(COUNTS.length)
      this.poller.native.counters(this.#connection, this.#lastCounts)
      this.poller.native.release(this.#connection)
      this.poller.forget(this.#connection, this.#entries)
    }
    this.#freed = true
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
    if (this.held.count > 0 || this.#kept > 0) return
    this.#ring.close()
    this.protectionDomain.close()
  }

  #pass(event: (sink: LinkSink) => void): void {
    const sink = this.#sink
    if (sink !== undefined) event(sink)
    else this.#early.push(() => this.#sink !== undefined && event(this.#sink))
  }

  get #canWriteImmediate(): boolean {
    return this.#settings.immediate && this.id.context.capabilities.writeWithImmediate
  }

  #handshake(writeWithImmediate: boolean, session: Session | undefined): Uint8Array {
    return encodeHandshake({
      version: this.#version,
      writeWithImmediate,
      log2Capacity: this.#settings.log2Capacity,
      receiveDepth: this.#settings.receiveDepth,
      longest: this.#longest,
      remoteKey: this.#ring.remoteKey,
      address: this.#ring.address,
      session,
      applicationData: this.#settings.applicationData,
    })
  }

  async #establish(peer: Handshake): Promise<void> {
    if (2 ** peer.log2Capacity > this.#settings.maxPeerCapacity)
      throw tooLarge('rdma_connect', this.id, peer.log2Capacity, this.#settings.maxPeerCapacity)
    this.#peer = peer
    const words = this.#settings.sendDepth * WORD
    const allocated = this.protectionDomain.allocateMemoryRegion(
      2 ** peer.log2Capacity + words,
      ['local-write'],
      BY_USE,
    )
    this.#staging = await inTime(allocated, this.id, this.#settings)
    const { native } = this.poller
    const connection = this.#connection
    native.establish(
      connection,
      this.#staging.handle,
      peer.address,
      peer.remoteKey,
      peer.log2Capacity,
      peer.receiveDepth,
      this.usesImmediate,
    )
    this.#lane = new Lane(
      this.#version,
      this.#staging.ownBuffer,
      peer.log2Capacity,
      this.poller.laneWords(connection),
      {
        reserve: (next, bytes) => native.reserve(connection, next, bytes),
        flush: (next, signaled) => native.flush(connection, next, signaled ? 1 : 0),
      },
      { frames: this.#settings.batchFrames, bytes: this.#settings.batchBytes },
    )
  }
}

/**
 * Memory is mapped on a thread of libuv's pool, which others may keep busy: nobody waits longer for it than for all else.
 * What comes later is closed with its protection domain.
 */
function inTime<T>(allocated: Promise<T>, id: ConnectionId, { wait }: Settings): Promise<T> {
  const { signal, timeout = DEFAULT_TIMEOUT_MS } = wait
  const late = () =>
    new VerbsError('ETIMEDOUT', 'ibv_reg_mr', id.description, 'no memory could be mapped yet')
  return within(allocated, timeout, late, signal)
}
