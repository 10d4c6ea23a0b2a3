import { createRequire } from 'node:module'
import type { Handle } from '@rdmakit/verbs'

/** Where the words that JavaScript shares with a poller are, in 32-bit words of its memory. */
export interface NativeLayout {
  readonly head: number
  readonly tail: number
  readonly idle: number
  readonly full: number
  /** 1 where the peer works at the same time, else 0; written by the thread */
  readonly hurry: number
  readonly slots: number
  readonly slotStride: number
  /** in a slot: units consumed, written by JavaScript */
  readonly released: number
  /** in a slot: units credited to the peer, written by the thread */
  readonly reported: number
  /**
   * in a slot: four words that a call about its staging region writes, in units modulo 2^32: where the next frame
   * goes, how far frames may reach, and how far they have been posted; and the window of the ring that they are in
   */
  readonly staging: number
  readonly descriptors: number
  readonly descriptorStride: number
  readonly descriptorCount: number
}

/**
 * The native half of a {@link Poller}; its thread runs from the constructor to `stop`. A descriptor is eight
 * words: connection, offset, length, type, correlation, immediate, end, zero.
 */
export interface NativePoller {
  readonly memory: ArrayBuffer
  readonly layout: NativeLayout
  /** Posts the receives of a queue pair and takes its completions. Returns the connection's number. */
  attach(
    queuePair: Handle,
    ring: Handle,
    log2Capacity: number,
    receiveDepth: number,
    sendDepth: number,
    /** work requests, at most a quarter of `sendDepth`, which is what 0 means */
    signalEvery: number,
    /** of the frames of both rings: 2 to 4 */
    version: number,
    /** of the ring; log2Capacity is that of the largest */
    windows: number,
  ): number
  /** Makes the connection able to send, now that the peer's ring is known. */
  establish(
    connection: number,
    staging: Handle,
    peerAddress: bigint,
    peerKey: number,
    log2Capacity: number,
    receiveDepth: number,
    writeWithImmediate: boolean,
    windows: number,
  ): void
  /**
   * JavaScript lays frames out in the staging region itself, from `next` up to its
   * window, and says how far it got by `next`. `reserve` makes room for a frame of `bytes`, its header and payload, in
   * one piece, behind a pad when it does not fit before the ring's end, and posts what is laid out when there is
   * no room otherwise. {@link SEND}.done: the words say where; full: a writable event with
   * {@link GRANT_ROOM} follows; tooLong, closed, failed (also for a `next` beyond the window).
   */
  reserve(connection: number, next: number, bytes: number): number
  /**
   * Posts all up to `next` as one batch: {@link SEND}.done, or full (a writable event follows, then call
   * again), closed, failed. `signal` 1: from now on each post completes by itself, so that `drained` comes
   * true; to be said no later than with the last frame.
   */
  flush(connection: number, next: number, signal: number): number
  /**
   * {@link flush} of a batch whose last payload is still `bytes`, which may change once this returns; its place is at
   * `offset` in the staging region. A device that can takes it from there, else it is copied to its place.
   */
  flushLent(connection: number, next: number, signal: number, offset: number, bytes: Uint8Array): number
  /** Asks the peer's poller for a sign of life: done, full while the last one is not answered, closed, failed. */
  ping(connection: number): number
  /**
   * RDMA READ of `length` bytes (1 … 2^30) of the peer's memory into `region`: done, and a `read` event of
   * `tag` follows; full while {@link READS} are under way; tooLong for bytes outside of the region; closed,
   * failed.
   */
  read(
    connection: number,
    region: Handle,
    offset: number,
    remoteAddress: bigint,
    remoteKey: number,
    length: number,
    tag: number,
  ): number
  /** Fills `out` in the order of `connectionCounters`. False when there is no such connection. */
  counters(connection: number, out: Float64Array): boolean
  /** Fills `out` in the order of `pollerCounters`. */
  pollerCounters(out: Float64Array): void
  /** In modes `caller` and `guarded` only: takes completions and describes what they brought. Returns the event ring's head. */
  turn(): number
  /** Whether everything sent has completed; if not, a writable event follows. */
  drained(connection: number): boolean
  /** Reports the released position to the peer. */
  returnCredit(connection: number): void
  /** Breaks the connection; a `detached` event is its last. */
  detach(connection: number): void
  /** Releases a connection's verbs objects, after its `detached` event. */
  release(connection: number): void
  /** Whether the thread's doorbell keeps the event loop alive. */
  setRef(on: boolean): void
  /** Wakes the thread after descriptors were drained that it found full. */
  wake(): void
  /** Ends the thread and joins it. Idempotent. */
  stop(): void
}

export interface NativeRing {
  Poller: new (
    queue: Handle,
    channel: Handle,
    mode: number,
    cpu: number,
    spinMicroseconds: number,
    maxConnections: number,
    descriptorCount: number,
    doorbell: () => void,
  ) => NativePoller
  /** Has the memory of large messages serve again once it is freed: native/binding/addon.cc. */
  keepFreedMemory(): void
  readonly connectionCounters: readonly string[]
  readonly pollerCounters: readonly string[]
}

/** The results of `reserve` and `flush`. */
export const SEND = { done: 0, full: 1, tooLong: 2, closed: 3, failed: 4 } as const

/** READs that a connection has under way at most (kReservedForReads of native/ring/wire/wire.h). */
export const READS = 4

/** The grant of a writable event: the refused frame fits, or may (`native/ring/sending/sender.h`). */
export const GRANT_ROOM = 1

/** Frame types on the wire, and from 0x100 the poller's own events. */
export const TYPE = {
  data: 1,
  pad: 2,
  request: 3,
  response: 4,
  error: 5,
  close: 6,
  offer: 7,
  settled: 8,
  part: 9,
  last: 10,
  grow: 11,
  writable: 0x100,
  broken: 0x101,
  detached: 0x102,
  read: 0x103,
} as const

// By name, so that it is found also from a bundle that holds this file. A bundle of CommonJS has no import.meta.url.
const require = createRequire(import.meta.url ?? __filename)

export const native = require('@rdmakit/ring-transport/addon') as NativeRing
