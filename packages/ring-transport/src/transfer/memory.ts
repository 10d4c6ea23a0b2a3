import type { MemoryRegion } from '@rdmakit/verbs'
import { deferred, onAbort } from '@rdmakit/verbs/internal'
import type { TransferHost } from './host.js'

/** Registered memory that has a user until it is released. */
export interface Lease {
  /** at least as long as was asked for */
  readonly region: MemoryRegion
  /** Gives it back. Nothing may be reading into it any more. Idempotent. */
  release(): void
}

/** A waiter for bytes: for a region of them, or only for their share of the limit. */
interface Waiting {
  readonly length: number
  /** whether an unused region will do */
  readonly takesRegion: boolean
  /** The memory that it waited for is there, and is its own. */
  serve(): void
  reject(reason: unknown): void
}

/** Regions are multiples of it, so that one serves again for what is about as long. */
const GRAIN = 64 * 1024
/** bytes that are kept for the next message rather than given back */
const KEPT = 16 * 2 ** 20

/** The memory that a connection pulls large messages into: bounded, and handed out in order of demand. */
export class TransferMemory {
  readonly #host: TransferHost
  /** bytes */
  readonly limit: number
  readonly #waiting: Waiting[] = []
  readonly #idle: MemoryRegion[] = []
  /** bytes of all regions, idle or not, and of those that are being made */
  #used = 0
  #serving = false
  #ended: unknown

  constructor(host: TransferHost, limit: number) {
    this.#host = host
    this.limit = limit
  }

  /** bytes in use, or kept for the next message */
  get used(): number {
    return this.#used
  }

  /**
   * Waits for `length` bytes, at most the limit, behind those who wait already.
   * @throws what ended the connection, VerbsError ENOMEM, the signal's reason
   */
  async acquire(length: number, signal?: AbortSignal): Promise<Lease> {
    signal?.throwIfAborted()
    if (this.#ended !== undefined) throw this.#ended
    const { promise, resolve, reject } = deferred<Lease>()
    const serve = () => this.#lend(length, resolve, reject)
    const waiting: Waiting = { length, takesRegion: true, serve, reject }
    const abort = () => {
      const at = this.#waiting.indexOf(waiting)
      if (at < 0) return
      this.#waiting.splice(at, 1)
      waiting.reject(signal?.reason)
      this.#serve()
    }
    this.#waiting.push(waiting)
    const stop = onAbort(signal, abort)
    try {
      this.#serve()
      return await promise
    } finally {
      stop()
    }
  }

  /**
   * Counts `length` bytes, at most the limit, of memory that the caller makes by itself, behind those who wait already.
   * @param begin called once they are counted, now or later; not at all when the connection ends before
   * @returns gives them back, or the place of one that waits; to be called once
   */
  reserve(length: number, begin: () => void): () => void {
    let counted = false
    const waiting: Waiting = {
      length,
      takesRegion: false,
      serve: () => {
        counted = true
        this.#used += length
        begin()
      },
      reject: () => {},
    }
    if (this.#ended === undefined) {
      this.#waiting.push(waiting)
      this.#serve()
    }
    return () => {
      const at = this.#waiting.indexOf(waiting)
      if (at >= 0) this.#waiting.splice(at, 1)
      if (counted) this.#used -= length
      this.#serve()
    }
  }

  /** The connection has ended: no more memory is handed out, and released memory is given back. */
  end(reason: unknown): void {
    this.#ended = reason
    for (const { reject } of this.#waiting.splice(0)) reject(reason)
    for (const region of this.#idle.splice(0)) this.#free(region)
  }

  /** Serves waiters in order, as far as there is memory; unused regions are given up for that. */
  #serve(): void {
    // One that is served may give its memory back at once, which comes back here; the loop below continues for it. A
    // peer can have thousands of such messages wait.
    if (this.#serving) return
    this.#serving = true
    try {
      while (this.#serveFirst());
    } finally {
      this.#serving = false
    }
  }

  /** False when nobody waits, or there is too little memory for the first. */
  #serveFirst(): boolean {
    const [first] = this.#waiting
    if (first === undefined) return false
    const { length, takesRegion } = first
    if (!takesRegion || this.#fitting(length) < 0) {
      const bytes = takesRegion ? this.#rounded(length) : length
      while (this.#used + bytes > this.limit) {
        const region = this.#idle.shift()
        if (region === undefined) return false
        this.#free(region)
      }
    }
    this.#waiting.shift()
    first.serve()
    return true
  }

  #fitting(length: number): number {
    return this.#idle.findIndex((one) => one.length >= length && one.length <= 2 * length + GRAIN)
  }

  #rounded(length: number): number {
    return Math.min(Math.ceil(length / GRAIN) * GRAIN, this.limit)
  }

  #lend(length: number, resolve: (lease: Lease) => void, reject: (reason: unknown) => void): void {
    const fitting = this.#fitting(length)
    if (fitting >= 0) {
      const [region] = this.#idle.splice(fitting, 1) as [MemoryRegion]
      resolve(this.#lease(region))
      return
    }
    const bytes = this.#rounded(length)
    this.#used += bytes
    void this.#make(bytes, resolve, reject)
  }

  async #make(
    bytes: number,
    resolve: (lease: Lease) => void,
    reject: (reason: unknown) => void,
  ): Promise<void> {
    const letGo = this.#host.keep()
    try {
      const { protectionDomain } = this.#host
      const region = await protectionDomain.allocateMemoryRegion(bytes)
      // Whole pages may be more than was asked for.
      this.#used += region.length - bytes
      resolve(this.#lease(region))
    } catch (failure) {
      this.#used -= bytes
      reject(failure)
      this.#serve()
    } finally {
      letGo()
    }
  }

  #lease(region: MemoryRegion): Lease {
    const letGo = this.#host.keep()
    let released = false
    return {
      region,
      release: () => {
        if (released) return
        released = true
        this.#release(region)
        letGo()
      },
    }
  }

  #release(region: MemoryRegion): void {
    const kept = this.#idle.reduce((sum, { length }) => sum + length, 0)
    if (this.#ended === undefined && kept + region.length <= KEPT) this.#idle.push(region)
    else this.#free(region)
    this.#serve()
  }

  #free(region: MemoryRegion): void {
    this.#used -= region.length
    region.close()
  }
}
