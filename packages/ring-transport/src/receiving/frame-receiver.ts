import type { ConnectionId, MemoryRegion, VerbsError } from '@rdmakit/verbs'
import { CallbackScope, deferred } from '@rdmakit/verbs/internal'
import { setImmediate } from '../base/clock.js'
import { GRANT_ROOM, TYPE } from '../native.js'
import type { Poller } from '../polling/poller.js'
import type { FrameSink } from '../polling/poller-client.js'
import { brokenReason } from '../setup/link-errors.js'
import { CopyPool } from './copy-pool.js'
import { type MessageSource, RingMessage, RingView } from './message.js'
import { UnreleasedFrames } from './unreleased-frames.js'

/** The connection above a link, as the link calls it. */
export interface LinkSink {
  message(type: number, message: RingMessage): void
  /** `room`: the frame that was refused fits now; else something was posted, credited or completed */
  writable(room: boolean): void
  /** the RDMA READ of that tag has completed, with an ibv_wc_status */
  read(tag: number, status: number): void
  broken(reason: VerbsError): void
}

/**
 * Receives the poller's events of one connection: makes messages of frames in the ring, passes them on, and
 * gives the ring back to the peer as they are released.
 */
export class FrameReceiver implements FrameSink, MessageSource {
  readonly memory: Uint8Array
  readonly debug: boolean
  readonly copies = new CopyPool()
  /** what callbacks of the connection run in: where it was made */
  readonly scope = new CallbackScope('RingConnection')
  readonly unreleased = new UnreleasedFrames()
  /** @internal its number at the poller, once it has one */
  connection = -1
  /** @internal called in place of giving credit, once the connection has ended: fewer frames are held */
  onReleased: (() => void) | undefined
  readonly #detached = deferred<void>()
  readonly #id: ConnectionId
  readonly #poller: Poller
  readonly #ring: MemoryRegion
  readonly #halfOf: (window: number) => number
  /** units of half the window that the peer is in */
  #half = 0
  /** units modulo 2^32 that the peer had been told are free when it was looked at last */
  #credited = 0
  readonly #view = new RingView()
  #drainer: ((view: RingView) => void) | undefined
  #sink: LinkSink | undefined
  #early: (() => void)[] = []
  #begin: (() => void) | undefined

  /** @param halfOf units of half a window of the ring */
  constructor(
    id: ConnectionId,
    poller: Poller,
    ring: MemoryRegion,
    halfOf: (window: number) => number,
    debug: boolean,
  ) {
    this.#id = id
    this.#poller = poller
    this.#ring = ring
    this.#halfOf = halfOf
    this.#enter(0)
    this.debug = debug
    this.memory = new Uint8Array(ring.ownBuffer)
  }

  /** Settles when the poller has finished with the connection. */
  get detached(): Promise<void> {
    return this.#detached.promise
  }

  /** Delivers earlier arrivals, then later ones as they come. */
  start(sink: LinkSink): void {
    this.#sink = sink
    const early = this.#early
    this.#early = []
    for (const event of early) event()
  }

  /**
   * {@link start}, a turn from now: the connection's owner first gets a turn to subscribe and to set a handler.
   * @returns starts now, if it has not yet
   */
  startSoon(sink: LinkSink): () => void {
    let begun = false
    const begin = () => {
      if (begun) return
      begun = true
      this.scope.run(() => this.start(sink))
    }
    this.#begin = begin
    setImmediate(begin)
    return begin
  }

  /**
   * Data that comes while the poller is drained goes straight to `drainer`, as a view that is used again.
   * Undefined: to the sink, as messages.
   */
  set drainer(drainer: ((view: RingView) => void) | undefined) {
    if (drainer !== undefined) this.give()
    this.#drainer = drainer
  }

  get isDrained(): boolean {
    return this.#drainer !== undefined
  }

  /** @see MessageSource.give */
  give(): void {
    this.#ring.give()
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
        this.#pass(end)
      }
    } else this.#other(type, offset, length, end, correlation, immediate)
  }

  #pass(end: number): void {
    if (this.unreleased.pass(end)) this.#credit()
  }

  #credit(): void {
    // No less is credited than was when it was looked at: with too little since then there is too little now.
    if ((this.unreleased.released - this.#credited) >>> 0 >= this.#half) this.#returnCredit()
  }
  // End of hot path.

  #other(
    type: number,
    offset: number,
    length: number,
    end: number,
    correlation: number,
    immediate: number,
  ): void {
    if (type === TYPE.pad) this.#pass(end)
    else if (type === TYPE.grow) {
      this.#enter(immediate)
      this.#pass(end)
    } else if (this.#drainer === undefined) this.#take(type, offset, length, end, correlation, immediate)
    // A draining program gets data in its own context; all other calls run in the connection's.
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
        // What has come until now is delivered before the end is told; without anybody to deliver it to it is let go
        // of, or the ring would never be free.
        this.#begin?.()
        if (this.#sink === undefined) this.start(NOBODY)
        this.#detached.resolve()
        break
      case TYPE.writable:
        this.#tell((sink) => sink.writable((offset & GRANT_ROOM) !== 0))
        break
      case TYPE.read:
        this.#tell((sink) => sink.read(correlation >>> 0, offset))
        break
      case TYPE.broken: {
        const reason = brokenReason(this.#id, offset, length)
        this.#tell((sink) => sink.broken(reason))
        break
      }
      default: {
        const message = new RingMessage(this, this.memory, offset, length, end, correlation, immediate)
        this.unreleased.add(message)
        if (this.#sink !== undefined) this.#sink.message(type, message)
        else this.#tell((sink) => sink.message(type, message))
      }
    }
  }

  /** @see MessageSource.released */
  released(): void {
    if (!this.unreleased.advance()) return
    if (this.onReleased !== undefined) this.onReleased()
    else this.#credit()
  }

  #returnCredit(): void {
    // Half a ring at a time: the rule that native/ring/wire/wire.h proves free of deadlock. The credited
    // position may be read late, which causes one request more than needed and never one less.
    const { released } = this.unreleased
    this.#credited = this.#poller.credited(this.connection)
    if ((released - this.#credited) >>> 0 >= this.#half) this.#poller.returnCredit(this.connection, released)
  }

  #enter(window: number): void {
    this.#half = this.#halfOf(window)
  }

  #tell(event: (sink: LinkSink) => void): void {
    const sink = this.#sink
    if (sink !== undefined) event(sink)
    else this.#early.push(() => this.#sink !== undefined && event(this.#sink))
  }
}

/** Of a connection that has ended before it began. */
const NOBODY: LinkSink = {
  message: (_, message) => message.release(),
  writable: () => {},
  read: () => {},
  broken: () => {},
}
