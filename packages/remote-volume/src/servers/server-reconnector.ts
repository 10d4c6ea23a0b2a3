import {
  ConfigurationError,
  type RemoteSlab,
  type SessionOptions,
  SwapServerError,
  SwapServerSession,
} from '@rdmakit/swap-server'
import { UsageError, VerbsError } from '@rdmakit/verbs'
import { onAbort } from '@rdmakit/verbs/internal'
import { FencedError } from './fenced-error.js'
import { endSession, type NotResumed, resumeSession, type VolumeShape } from './resume-session.js'
import type { VolumeServer } from './volume-server.js'

/** Milliseconds from one call to a server that has failed to the next. */
const RECALL_MS = 2_000
/** While requests wait for it. */
const URGENT_RECALL_MS = 500
/** How long one such call may take: as long as there is time, */
const CALL_MS = 5_000
/** and the last call, for this long. */
const LAST_CALL_MS = 2_000
/** How long no process listens there on this host, until its memory counts as lost. */
const REFUSED_MS = 1_000

/** Who has answered takes part at another address, or is reached over another device than the volume's. */
export class WrongAddressError extends Error {}

export interface ReconnectorOptions {
  readonly session: SessionOptions
  readonly volume: VolumeShape
  /** milliseconds that a server is waited for that is away */
  readonly reconnect: number
  /** Takes a server in that has answered. @throws UsageError: it can take no part, and is not called any more */
  readonly join: (uris: readonly string[], session: SwapServerSession) => Promise<void>
  /** Continues with a server that has come back with its memory. @throws as `join` */
  readonly rejoin: (
    gone: VolumeServer,
    session: SwapServerSession,
    slabs: readonly RemoteSlab[],
  ) => Promise<void>
  /** Whether another incarnation of the server has its session, or may come back with it. */
  readonly shared: (gone: VolumeServer) => boolean
  /** Another process has the volume. No server is called any more. */
  readonly fenced: (failure: FencedError) => void
  /** Data that only that server had are lost. */
  readonly lose: (gone: VolumeServer, reason: string) => void
  readonly progress: (step: string) => void
}

/** Calls servers that have failed until they answer. */
export class ServerReconnector {
  readonly #options: ReconnectorOptions
  readonly #ending = new AbortController()
  readonly #calls = new Map<VolumeServer, Promise<void>>()
  /** addresses that were of no use, in the order in which they were it last: silent for a whole call, or wrong */
  readonly #useless = new Set<string>()
  #open = false

  constructor(options: ReconnectorOptions) {
    this.#options = options
  }

  /** No server joins before this call. */
  start(): void {
    this.#open = true
  }

  /**
   * Begins to call a server; it joins with its old memory, if it is away, or with empty memory. Does nothing
   * if it is called already: two calls would add it twice.
   */
  call(server: VolumeServer): void {
    if (this.#calls.has(server)) return
    this.#calls.set(
      server,
      this.#callBack(server).finally(() => this.#calls.delete(server)),
    )
  }

  /** Ends all calls. Resolves when no further server can join. */
  async close(): Promise<void> {
    this.#ending.abort(new Error('the volume was closed'))
    await Promise.all(this.#calls.values())
  }

  async #callBack(gone: VolumeServer): Promise<void> {
    const { fenced, join, progress, shared } = this.#options
    const { signal } = this.#ending
    const options = { ...this.#options.session, signal }
    if (gone.away && (await this.#resume(gone))) return
    // Never ends a session that is still referred to: its owner is being called, or lives.
    if (gone.reached) void (shared(gone) ? gone.session.leave() : gone.session.close()).catch(() => {})
    let told: string | undefined
    while (await waited(RECALL_MS, signal)) {
      if (!this.#open) continue
      if (shared(gone)) return
      let session: SwapServerSession | undefined
      try {
        await endLingering(gone, options)
        session = await SwapServerSession.open(this.#addressesOf(gone), options)
        return await join(gone.uris, session)
      } catch (failure) {
        await session?.close()
        if (session !== undefined) this.#noteWrong(session, failure)
        if (signal.aborted) return
        if (failure instanceof FencedError) return fenced(failure)
        const { message } = failure as Error
        if (failure instanceof UsageError && !(failure instanceof ConfigurationError))
          return progress(`${gone.uris.join(' or ')}: ${message}; it is not called again`)
        // No server answers, as expected.
        if (failure instanceof VerbsError || message === told) continue
        // A reason that may be repaired while this runs, such as a key or a full file system, is logged once.
        told = message
        progress(`${gone.uris.join(' or ')}: ${message}; it is called again`)
      }
    }
  }

  /** @returns whether it is back or no longer needed; otherwise its data are lost */
  async #resume(gone: VolumeServer): Promise<boolean> {
    const { reconnect, lose, progress } = this.#options
    const { signal } = this.#ending
    const deadline = performance.now() + reconnect
    // Its connections do no harm; the session stays.
    if (gone.reached) void gone.session.leave().catch(() => {})
    let refusedSince: number | undefined
    let told: string | undefined
    do {
      // Behind a standstill of this machine the last try is still to come.
      const last = performance.now() >= deadline
      const left = deadline - performance.now()
      const outcome = await this.#resumeOnce(gone, Math.max(LAST_CALL_MS, Math.min(CALL_MS, left)))
      if (outcome === undefined || signal.aborted) return true
      // An operator may repair it while there is time.
      if (outcome.forbidden !== undefined && outcome.reason !== told)
        progress(`${gone.uris.join(' or ')}: ${outcome.reason}; it is called again`)
      told = outcome.reason
      if (!outcome.refused) refusedSince = undefined
      else refusedSince ??= performance.now()
      const refused = refusedSince !== undefined && performance.now() - refusedSince >= REFUSED_MS
      if (!outcome.ended && !refused && !last) continue
      lose(
        gone,
        last ? `it did not come back within ${reconnect / 1000} s: ${outcome.reason}` : outcome.reason,
      )
      return false
    } while (await waited(URGENT_RECALL_MS, signal))
    return true
  }

  /**
   * In the order of a call: the first one that answers is taken, and one that is silent may take all the time, so those
   * that were of no use come last, and that of them which was it last.
   */
  #addressesOf({ uris }: VolumeServer): string[] {
    const useless = [...this.#useless].filter((uri) => uris.includes(uri))
    return [...uris.filter((uri) => !useless.includes(uri)), ...useless]
  }

  #noteUseless(uri: string): void {
    this.#useless.delete(uri)
    this.#useless.add(uri)
  }

  #noteWrong({ uri }: SwapServerSession, failure: unknown): void {
    if (failure instanceof WrongAddressError) this.#noteUseless(uri)
  }

  /** @returns undefined when it is back, when another process has it, or behind {@link close} */
  async #resumeOnce(gone: VolumeServer, limit: number): Promise<NotResumed | undefined> {
    const { identity } = gone
    const failed = (failure: unknown, ended: boolean) => ({
      reason: (failure as Error).message,
      ended,
      refused: false,
    })
    if (identity === undefined) return failed(new Error('it never joined'), true)
    const { session, volume, rejoin } = this.#options
    const { signal } = this.#ending
    if (signal.aborted) return undefined
    // Not AbortSignal.any of AbortSignal.timeout: Node holds that weakly, and it may never come.
    const call = new AbortController()
    const late = new Error(`no answer within ${Math.ceil(limit / 1000)} s`)
    const timer = setTimeout(() => call.abort(late), limit).unref()
    const stop = onAbort(signal, () => call.abort(signal.reason))
    try {
      const options = { ...session, signal: call.signal }
      const outcome = await resumeSession({ uris: this.#addressesOf(gone), identity }, volume, options)
      if (!('session' in outcome)) {
        if (outcome.silent !== undefined) this.#noteUseless(outcome.silent)
        return outcome
      }
      try {
        await rejoin(gone, outcome.session, outcome.slabs)
        return undefined
      } catch (failure) {
        await outcome.session.leave()
        this.#noteWrong(outcome.session, failure)
        // The server still has its memory, whatever is wrong with the way to it at the moment.
        return failed(failure, false)
      }
    } catch (failure) {
      if (!(failure instanceof FencedError)) return failed(failure, false)
      this.#options.fenced(failure)
      return undefined
    } finally {
      clearTimeout(timer)
      stop()
    }
  }
}

/** Ends a failed server's session: the memory that it keeps for us is useless, and the refill needs room. */
async function endLingering({ uris, identity }: VolumeServer, options: SessionOptions): Promise<void> {
  if (identity === undefined) return
  try {
    await endSession(uris, identity, options)
  } catch (failure) {
    // ENOENT, as a rule: it has ended. EBADMSG: it may have, and a new session wants a proof anyway.
    if (!(failure instanceof SwapServerError && ['ENOENT', 'EBADMSG'].includes(failure.code))) throw failure
  }
}

/** @returns false when `signal` aborted */
function waited(ms: number, signal: AbortSignal): Promise<boolean> {
  if (signal.aborted) return Promise.resolve(false)
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve(!signal.aborted)
    }
    const timer = setTimeout(end, ms)
    timer.unref()
    signal.addEventListener('abort', end)
  })
}
