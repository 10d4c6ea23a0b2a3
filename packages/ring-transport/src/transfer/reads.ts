import { type MemoryRegion, VerbsError } from '@rdmakit/verbs'
import { type Deferred, deferred } from '@rdmakit/verbs/internal'
import { clearTimeout, setTimeout } from '../base/clock.js'
import { READS, SEND } from '../native.js'
import type { TransferHost } from './host.js'

/** Bytes of the peer's memory that are to be read. */
export interface RemoteBytes {
  readonly address: bigint
  readonly remoteKey: number
  /** bytes, from 1 */
  readonly length: number
}

/** bytes of one READ */
export const READ_BYTES = 2 ** 20

/**
 * Milliseconds without the completion of any READ after which the connection counts as broken. A READ cannot
 * be cancelled, and its memory must not be reused while it may still complete.
 */
const STUCK_AFTER_MS = 30_000

/** One reading of remote bytes into a region. */
export interface Pull {
  /** settles when no READ of it is under way any more */
  readonly done: Promise<void>
  /** Posts no more READs: `done` rejects with `reason` once those under way have come. */
  stop(reason: unknown): void
}

interface Job extends Deferred<void> {
  readonly from: RemoteBytes
  readonly region: MemoryRegion
  readonly offset: number
  readonly onRead: (bytes: number) => void
  posted: number
  read: number
  underWay: number
  failed: boolean
  reason: unknown
}

/** The RDMA READs of a connection: at most {@link READS} outstanding, in order of request. */
export class Reads {
  readonly #host: TransferHost
  readonly #jobs = new Set<Job>()
  readonly #tags = new Map<number, { readonly job: Job; readonly length: number }>()
  /** the tag given out last: 0 … 2^32 − 1, then from 0 again */
  lastTag = 0
  #watchdog: NodeJS.Timeout | undefined
  #ended: unknown

  constructor(host: TransferHost) {
    this.#host = host
  }

  /**
   * Reads into `region` from `offset` on, which must be the caller's until the pull is done.
   * @param onRead called with the bytes of each READ that has come
   */
  pull(from: RemoteBytes, region: MemoryRegion, offset: number, onRead: (bytes: number) => void): Pull {
    const job: Job = {
      ...deferred<void>(),
      from,
      region,
      offset,
      onRead,
      posted: 0,
      read: 0,
      underWay: 0,
      failed: false,
      reason: undefined,
    }
    // The caller of pull may look at it later.
    job.promise.catch(() => {})
    if (this.#ended !== undefined) job.reject(this.#ended)
    else {
      this.#jobs.add(job)
      this.#pump()
    }
    return { done: job.promise, stop: (reason) => this.#stop(job, reason) }
  }

  /** A READ has completed. @param status ibv_wc_status */
  onRead(tag: number, status: number): void {
    const found = this.#tags.get(tag)
    if (found === undefined) return
    const { job, length } = found
    this.#tags.delete(tag)
    job.underWay--
    if (this.#tags.size > 0) this.#watchdog?.refresh()
    else clearTimeout(this.#watchdog)
    if (status !== 0) this.#stop(job, this.#broken(`RDMA READ failed, status ${status}`))
    else if (!job.failed) {
      job.read += length
      job.onRead(length)
    }
    this.#settle(job)
    this.#pump()
  }

  /** The connection has ended, and its queue pair does nothing any more. */
  end(reason: unknown): void {
    this.#ended = reason
    clearTimeout(this.#watchdog)
    this.#tags.clear()
    for (const { reject } of this.#jobs) reject(reason)
    this.#jobs.clear()
  }

  #stop(job: Job, reason: unknown): void {
    if (job.failed || !this.#jobs.has(job)) return
    job.failed = true
    job.reason = reason
    this.#settle(job)
  }

  #settle(job: Job): void {
    if (job.underWay > 0 || !(job.failed || job.read === job.from.length)) return
    this.#jobs.delete(job)
    if (job.failed) job.reject(job.reason)
    else job.resolve()
  }

  #pump(): void {
    for (const job of this.#jobs) {
      while (!job.failed && job.posted < job.from.length) {
        if (this.#tags.size === READS) return
        this.#post(job)
      }
    }
  }

  #post(job: Job): void {
    const { from, region, offset, posted } = job
    const length = Math.min(READ_BYTES, from.length - posted)
    do this.lastTag = (this.lastTag + 1) >>> 0
    while (this.#tags.has(this.lastTag))
    const address = from.address + BigInt(posted)
    const result = region.closed
      ? SEND.tooLong
      : this.#host.read(region.handle, offset + posted, address, from.remoteKey, length, this.lastTag)
    if (result === SEND.done) {
      this.#tags.set(this.lastTag, { job, length })
      job.posted += length
      job.underWay++
      if (this.#tags.size === 1) this.#watch()
      return
    }
    const reason = this.#broken(
      result === SEND.tooLong
        ? 'the memory to read into is closed'
        : 'the queue pair accepts no more work requests',
    )
    this.#stop(job, reason)
    if (result !== SEND.tooLong) this.#host.fail(reason)
  }

  #watch(): void {
    clearTimeout(this.#watchdog)
    this.#watchdog = setTimeout(() => {
      const detail = `no RDMA READ has completed for ${STUCK_AFTER_MS} ms`
      this.#host.fail(new VerbsError('ETIMEDOUT', 'ibv_post_send', this.#host.object, detail))
    }, STUCK_AFTER_MS)
    // The connection keeps the event loop alive, not its timers.
    this.#watchdog.unref()
  }

  #broken(detail: string): VerbsError {
    return new VerbsError('ECONNRESET', 'ibv_post_send', this.#host.object, detail)
  }
}
