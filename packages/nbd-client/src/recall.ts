import {
  ConfigurationError,
  type SessionOptions,
  SwapServerError,
  SwapServerSession,
} from '@rdmakit/swap-server'
import { UsageError, VerbsError } from '@rdmakit/verbs'
import { endSession } from './take-over.js'
import type { VolumeServer } from './volume-server.js'

/** Milliseconds from one call to a server that has failed to the next. */
const RECALL_MS = 2_000

export interface RecallOptions {
  readonly session: SessionOptions
  /** Takes a server in that has answered. @throws UsageError: it can take no part, and is not called any more */
  readonly join: (uris: readonly string[], session: SwapServerSession) => Promise<void>
  readonly progress: (step: string) => void
}

/** Calls servers that have failed until they answer. */
export class Recall {
  readonly #options: RecallOptions
  readonly #ending = new AbortController()
  readonly #calls = new Set<Promise<void>>()
  #open = false

  constructor(options: RecallOptions) {
    this.#options = options
  }

  /** Nobody joins before this. */
  start(): void {
    this.#open = true
  }

  /** Begins to call a server; it joins with empty memory. */
  call(server: VolumeServer): void {
    const call = this.#callBack(server).finally(() => this.#calls.delete(call))
    this.#calls.add(call)
  }

  /** Ends all calls. Resolves when nobody joins any more. */
  async close(): Promise<void> {
    this.#ending.abort(new Error('the volume was closed'))
    await Promise.all(this.#calls)
  }

  async #callBack(gone: VolumeServer): Promise<void> {
    const { join, progress } = this.#options
    const { signal } = this.#ending
    const options = { ...this.#options.session, signal }
    if (gone.reached) void gone.session.close().catch(() => {})
    let told: string | undefined
    while (await waited(RECALL_MS, signal)) {
      if (!this.#open) continue
      let session: SwapServerSession | undefined
      try {
        await endLingering(gone, options)
        session = await SwapServerSession.open(gone.uris, options)
        return await join(gone.uris, session)
      } catch (failure) {
        await session?.close()
        if (signal.aborted) return
        const { message } = failure as Error
        if (failure instanceof UsageError && !(failure instanceof ConfigurationError))
          return progress(`${gone.uris.join(' or ')}: ${message}; it stays out`)
        // Nobody answers, as is to be expected.
        if (failure instanceof VerbsError || message === told) continue
        // What may be mended while this runs: a key, a file system that is full. Said once.
        told = message
        progress(`${gone.uris.join(' or ')}: ${message}; it is called again`)
      }
    }
  }
}

/** What a server that failed still keeps for us is worth nothing, and in the way of the refill. */
async function endLingering({ uris, identity }: VolumeServer, options: SessionOptions): Promise<void> {
  if (identity === undefined) return
  try {
    await endSession(uris, identity, options)
  } catch (failure) {
    // ENOENT, as a rule: it has ended.
    if (!(failure instanceof SwapServerError && failure.code === 'ENOENT')) throw failure
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
