import {
  type CompletionChannel,
  type CompletionQueue,
  type Context,
  UsageError,
  VerbsError,
} from '@rdmakit/verbs'
import { queueMicrotask, setImmediate } from '../base/clock.js'
import { checkDrainLimit } from '../connection/call-options.js'
import { named, type PollerStatistics } from '../connection/statistics.js'
import { type NativeLayout, type NativePoller, native } from '../native.js'
import type { Flushable, FrameSink } from './poller-client.js'
import { checked, POLLER_MODES, type PollerMode, type PollerOptions } from './poller-options.js'

/** Messages taken before the tail is shown to the thread and outgoing batches are posted. */
const DRAIN_BATCH = 256
/** Batches before other work of the event loop gets its turn. */
const DRAIN_BATCHES_PER_TURN = 8

/**
 * Serves the completion queue of any number of connections of one device and hands their messages to JavaScript in
 * batches. Its connections keep the event loop alive.
 */
export class Poller {
  static readonly #shared = new WeakMap<Context, Map<PollerMode, Poller>>()

  readonly context: Context
  readonly mode: PollerMode
  /** @internal where its connections' queue pairs complete */
  readonly queue: CompletionQueue
  readonly #channel: CompletionChannel
  readonly #native: NativePoller
  readonly #layout: NativeLayout
  readonly #words: Int32Array
  readonly #sinks = new Map<number, FrameSink>()
  /** those who have something to post, the first `#dirtyCount` */
  readonly #dirty: (Flushable | undefined)[] = []
  #dirtyCount = 0
  /** of the completion queue */
  #entries: number
  /** as many as it may have */
  readonly #mostEntries: number
  #entriesUsed = 0
  /** connections that keep the event loop alive */
  readonly #holding = new Set<number>()
  readonly #callers: boolean
  #lastConnection = -1
  #lastSink: FrameSink | undefined
  #tail = 0
  /** the head of the event ring, when {@link look} looked last */
  #seen = 0
  /** where the descriptors end that are dispatched now */
  #end = 0
  #draining = false
  #flushScheduled = false
  #closed = false

  /**
   * @throws UsageError for an option out of range; VerbsError when the device has not the resources
   */
  constructor(context: Context, options: PollerOptions = {}) {
    const { mode, cpu, spinMicroseconds, maxConnections, descriptors, ...queue } = checked(context, options)
    this.#entries = queue.entries
    this.#mostEntries = queue.mostEntries
    this.context = context
    this.mode = mode
    this.#callers = mode === 'caller' || mode === 'guarded'
    this.#channel = context.createCompletionChannel()
    try {
      // Closed with its channel when the rest fails.
      this.queue = context.createCompletionQueue({
        entries: this.#entries,
        channel: this.#channel,
        progress: 'manual',
      })
      this.#native = new native.Poller(
        this.queue.handle,
        this.#channel.handle,
        POLLER_MODES.indexOf(mode),
        cpu,
        spinMicroseconds,
        maxConnections,
        descriptors,
        () => this.#drain(),
      )
    } catch (failure) {
      this.#channel.close()
      throw failure
    }
    this.#layout = this.#native.layout
    this.#words = new Int32Array(this.#native.memory)
  }

  /**
   * The poller of a mode that connections of a device share when they name none of their own, made at first use.
   * @throws UsageError for a mode that there is not
   */
  static shared(context: Context, mode: PollerMode = 'guarded'): Poller {
    const pollers = Poller.#shared.get(context) ?? new Map<PollerMode, Poller>()
    Poller.#shared.set(context, pollers)
    const known = pollers.get(mode)
    if (known !== undefined && !known.#closed && !known.queue.closed) return known
    const poller = new Poller(context, { mode })
    pollers.set(mode, poller)
    return poller
  }

  /** Connections that it serves now. */
  get connections(): number {
    return this.#sinks.size
  }

  get closed(): boolean {
    return this.#closed
  }

  /** Its counters; after {@link close}, the final counters. */
  statistics(): PollerStatistics {
    const counters = new Float64Array(native.pollerCounters.length)
    this.#native.pollerCounters(counters)
    const counted = named(native.pollerCounters, counters) as Record<keyof PollerStatistics, number>
    return { ...counted, connections: this.connections }
  }

  /**
   * Ends the thread. Close its connections first: they would not receive anything any more.
   * @throws UsageError when connections are left
   */
  close(): void {
    if (this.#closed) return
    if (this.#sinks.size > 0)
      throw new UsageError(`the poller serves ${this.#sinks.size} connections; close them first`)
    this.#closed = true
    this.#native.stop()
    this.queue.close()
    this.#channel.close()
  }

  [Symbol.dispose](): void {
    this.close()
  }

  /**
   * Receives messages in a program that polls: in modes `caller` and `guarded` it also polls for completions; otherwise it
   * takes what the thread has delivered. Everything is dispatched before it returns, and sent messages are posted.
   * @param limit maximum number of messages and events, 0 … 2^32 − 1, default 256
   * @returns how many it took
   * @throws UsageError when it is called from one of its own callbacks, or for a bad limit
   */
  drain(limit = DRAIN_BATCH): number {
    if (limit !== limit >>> 0) checkDrainLimit(limit)
    return this.look() ? this.#take(this.#seen, limit) : 0
  }

  /**
   * @internal whether something has come, for {@link takeSeen}; if nothing has, what was sent is posted
   * @throws UsageError when it is called from a callback of {@link drain}
   */
  look(): boolean {
    if (this.#draining) throw new UsageError('drain was called from its own callback')
    if (this.#closed) return false
    this.#seen = this.#callers ? this.#native.turn() : Atomics.load(this.#words, this.#layout.head)
    if (this.#seen !== this.#tail) return true
    this.#flush()
    return false
  }

  /** @internal {@link drain} of what {@link look} has seen */
  takeSeen(limit: number): number {
    return this.#take(this.#seen, limit)
  }

  /** @internal the words in which native code tells a connection where it may lay out frames */
  stagingWords(connection: number): Int32Array {
    const at = this.#layout.slots + (connection & 0xffff) * this.#layout.slotStride + this.#layout.staging
    return this.#words.subarray(at, at + 4)
  }

  /** @internal the word {@link NativeLayout.hurry} */
  get hurry(): Int32Array {
    return this.#words.subarray(this.#layout.hurry, this.#layout.hurry + 1)
  }

  /** @internal takes on a queue pair; its receives are posted when this returns */
  attach(sink: FrameSink, entries: number, ...queuePair: Parameters<NativePoller['attach']>): number {
    if (this.#closed) throw new UsageError('the poller is closed')
    this.#provide(this.#entriesUsed + entries)
    const connection = this.#native.attach(...queuePair)
    this.#entriesUsed += entries
    this.#sinks.set(connection, sink)
    this.#lastConnection = -1
    this.hold(connection, true)
    return connection
  }

  /** Makes the queue large enough for so many entries. @throws VerbsError ENOSPC, ENOMEM */
  #provide(entries: number): void {
    if (entries <= this.#entries) return
    if (entries > this.#mostEntries)
      throw new VerbsError(
        'ENOSPC',
        'ibv_create_qp',
        this.queue.description,
        `${this.#entriesUsed} of ${this.#entries} entries are in use; raise completionQueueEntries`,
      )
    const doubled = Math.min(Math.max(entries, 2 * this.#entries), this.#mostEntries)
    this.queue.resize(doubled)
    this.#entries = doubled
  }

  /** @internal the connection's `detached` event has come: nothing of it is left in the queue */
  forget(connection: number, entries: number): void {
    if (!this.#sinks.delete(connection)) return
    this.#lastConnection = -1
    this.#entriesUsed -= entries
    this.hold(connection, false)
  }

  /** @internal whether a connection keeps the event loop alive; at first each does */
  hold(connection: number, on: boolean): void {
    const before = this.#holding.size
    if (on) this.#holding.add(connection)
    else this.#holding.delete(connection)
    if (before === 0 || this.#holding.size === 0) this.#native.setRef(this.#holding.size > 0)
  }

  /** @internal */
  get native(): NativePoller {
    return this.#native
  }

  /** @internal units modulo 2^32 of a connection's ring that the peer has been told are free; may lag */
  credited(connection: number): number {
    const { slots, slotStride, reported } = this.#layout
    return (this.#words[slots + (connection & 0xffff) * slotStride + reported] as number) >>> 0
  }

  /** @internal publishes how far JavaScript has consumed a connection's ring, for the peer to be told */
  returnCredit(connection: number, units: number): void {
    const { slots, slotStride, released } = this.#layout
    Atomics.store(this.#words, slots + (connection & 0xffff) * slotStride + released, units)
    this.#native.returnCredit(connection)
  }

  /** @internal calls `outbox.flush` once at the end of this drain, else of this turn of the event loop */
  scheduleFlush(outbox: Flushable): void {
    if (outbox.isListed) return
    outbox.isListed = true
    this.#dirty[this.#dirtyCount++] = outbox
    if (this.#draining || this.#flushScheduled) return
    this.#flushScheduled = true
    queueMicrotask(() => {
      this.#flushScheduled = false
      this.#flush()
    })
  }

  /** Hot path: the array keeps its memory, and there is no iterator. */
  #flush(): void {
    const dirty = this.#dirty
    for (let i = 0; i < this.#dirtyCount; i++) {
      const outbox = dirty[i] as Flushable
      outbox.isListed = false
      dirty[i] = undefined
      outbox.flush()
    }
    this.#dirtyCount = 0
  }

  /**
   * Takes what the thread has put into the descriptor ring. The thread rings the doorbell only when
   * `idle` is set, so before this returns it either set `idle` and saw the ring empty after that, or
   * comes back by itself. Both sides store their word before they load the other's, sequentially
   * consistent (Atomics, std::memory_order_seq_cst), so one of them sees the other.
   */
  #drain(): void {
    if (this.#closed) return
    const words = this.#words
    const { head, idle } = this.#layout
    Atomics.store(words, idle, 0)
    let again = true
    try {
      for (let batch = 0; batch < DRAIN_BATCHES_PER_TURN; ) {
        if (this.#take(Atomics.load(words, head), DRAIN_BATCH) > 0) {
          batch++
          continue
        }
        Atomics.store(words, idle, 1)
        // More may have arrived. If the thread has taken the word, its doorbell is on the way.
        again = Atomics.load(words, head) !== this.#tail && Atomics.exchange(words, idle, 0) !== 0
        if (!again) return
      }
    } finally {
      // Also after an exception of the application's, or nothing would ring again.
      if (again) setImmediate(() => this.#drain())
    }
  }

  // --- hot path: nothing is allocated for a message whose sink allocates nothing ---
  /** Dispatches up to `limit` descriptors, shows the new tail, and posts what was sent meanwhile. */
  #take(head: number, limit: number): number {
    const from = this.#tail
    if (head === from) {
      this.#flush()
      return 0
    }
    const words = this.#words
    const { tail, full } = this.#layout
    this.#end = (from + Math.min(limit, (head - from) | 0)) | 0
    this.#draining = true
    try {
      while (this.#tail !== this.#end) {
        // A forgotten connection has no sink; its remaining descriptors are skipped.
        const at = this.#descriptor()
        const sink = this.#sinkAt(at)
        if (sink === undefined || sink.isDrained) this.#dispatch(sink, at)
        else sink.scope.runInAsyncScope(this.#dispatchRun)
      }
    } finally {
      Atomics.store(words, tail, this.#tail)
      if (Atomics.load(words, full) !== 0) this.#native.wake()
      this.#draining = false
      this.#flush()
    }
    return (this.#tail - from) | 0
  }

  /** Where the words of the next descriptor begin, of `Descriptor` in native/ring/event_ring.h. */
  #descriptor(): number {
    const { descriptors, descriptorStride, descriptorCount } = this.#layout
    return descriptors + (this.#tail & (descriptorCount - 1)) * descriptorStride
  }

  #sinkAt(descriptor: number): FrameSink | undefined {
    const connection = this.#words[descriptor] as number
    if (connection !== this.#lastConnection) {
      this.#lastConnection = connection
      this.#lastSink = this.#sinks.get(connection)
    }
    return this.#lastSink
  }

  /** Dispatches those of one connection, up to the next of another: its scope is entered once for all of them. */
  readonly #dispatchRun = (): void => {
    const sink = this.#lastSink
    let at = this.#descriptor()
    do {
      this.#dispatch(sink, at)
      at = this.#descriptor()
    } while (this.#tail !== this.#end && this.#sinkAt(at) === sink)
  }

  #dispatch(sink: FrameSink | undefined, at: number): void {
    const words = this.#words
    this.#tail = (this.#tail + 1) | 0
    sink?.frame(
      words[at + 3] as number,
      words[at + 1] as number,
      words[at + 2] as number,
      words[at + 6] as number,
      words[at + 4] as number,
      words[at + 5] as number,
    )
  }
  // --- end of the hot path ---
}
