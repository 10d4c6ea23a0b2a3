import { formatSize } from '@rdmakit/operator-kit'
import {
  ConfigurationError,
  meaningOfRefusal,
  type RemoteSlab,
  type SessionIdentity,
  type SessionOptions,
  SwapServerError,
  SwapServerSession,
} from '@rdmakit/swap-server'
import { ConnectionRejectedError, parseUri, VerbsError } from '@rdmakit/verbs'
import { FencedError, fencedOr } from './fenced-error.js'

/** A session that was taken up, and the slabs that were found there. */
export interface Resumed {
  readonly session: SwapServerSession
  readonly slabs: readonly RemoteSlab[]
}

export interface NotResumed {
  readonly reason: string
  /** the server was there and does not have the session: its memory is empty */
  readonly ended: boolean
  /** the server was there and does not let this process have it, which waiting does not mend: its refusal */
  readonly forbidden?: SwapServerError
  /**
   * Nobody listens on any of its addresses, all of which are this host's (`shm://`): who had the memory has ended. At any
   * other address a tunnel, a proxy or a firewall may refuse for the server, which has what it had.
   */
  readonly refused: boolean
  /** the address that was being called when `signal` ended the call: those after it were not called */
  readonly silent?: string
}

/** The size of a volume, as far as it concerns a server. */
export interface VolumeShape {
  /** bytes */
  readonly slabSize: number
  readonly slabCount: number
}

/** Slabs of a volume that a server has at most: each of them, and one that is on its way back. */
const SLABS_EACH = 2
/** … and besides: spare ones, and those of requests that were not answered. */
const MORE_SLABS = 1_024

/** Refusals by a server that has the session. */
const HAS_IT = ['EBUSY', 'EXDEV', 'EDQUOT', 'EUSERS']

/** How long the end of a session of a process that has just died waits for the server to notice that. */
const ATTENDED_MS = 2_000
const ATTENDED_RETRY_MS = 100

/**
 * Takes up a session at whichever of the server's addresses answers.
 * @param volume what it is of: a server that lists more slabs than one may have of it, or of another size, is not believed
 * @throws ConfigurationError: a key that cannot be read; FencedError
 */
export async function resumeSession(
  { uris, identity }: { readonly uris: readonly string[]; readonly identity: SessionIdentity },
  { slabSize, slabCount }: VolumeShape,
  options: SessionOptions,
): Promise<Resumed | NotResumed> {
  let reason = 'it has no address'
  let ended = false
  let exists = false
  let forbidden: SwapServerError | undefined
  let refused = true
  let silent: string | undefined
  for (const uri of uris) {
    let session: SwapServerSession | undefined
    try {
      session = await SwapServerSession.resume([uri], identity, options)
      if (session.slabSize !== slabSize)
        // It is the server that the session was opened with, by its epoch, and it had the right ones then.
        throw new SwapServerError(
          'EPROTO',
          `${session.uri} has slabs of ${formatSize(session.slabSize)}, the volume has ${formatSize(slabSize)}`,
        )
      const most = SLABS_EACH * slabCount + MORE_SLABS
      return { session, slabs: await session.list({ ...options, most }) }
    } catch (failure) {
      await session?.leave()
      const fenced = fencedOr(uri, failure)
      if (fenced instanceof FencedError) throw fenced
      // Nothing is given up for a key that cannot be read, or is not the right one yet.
      if (failure instanceof ConfigurationError) throw failure
      const meaning = failure instanceof SwapServerError ? meaningOfRefusal(failure.code) : undefined
      // A verdict on the session from another address counts for more than this one's silence.
      if (forbidden === undefined || meaning !== undefined) reason = (failure as Error).message
      if (failure instanceof SwapServerError && meaning === 'forbidden') forbidden = failure
      ended ||= meaning === 'ended'
      exists ||=
        session !== undefined || (failure instanceof SwapServerError && HAS_IT.includes(failure.code))
      refused &&=
        parseUri(uri).provider === 'shm' &&
        failure instanceof VerbsError &&
        failure.code === 'ECONNREFUSED' &&
        !(failure instanceof ConnectionRejectedError)
      if (options.signal?.aborted) silent = uri
      // The address may lead to another server by now, which has no such session either: the next may lead to this one.
      if (silent !== undefined) break
    }
  }
  // Then whoever knew no such session was another server.
  ended &&= !exists
  return {
    reason,
    ended,
    refused,
    ...(forbidden === undefined || ended ? {} : { forbidden }),
    ...(silent === undefined ? {} : { silent }),
  }
}

/** How much an answer says of the session: an address may lead to another server by now, or nowhere. */
function telling(failure: unknown): number {
  if (!(failure instanceof SwapServerError)) return 0
  if (HAS_IT.includes(failure.code)) return 3
  return meaningOfRefusal(failure.code) === 'ended' ? 2 : 1
}

/** @throws FencedError; else, of what its addresses say, what is most telling */
async function resumeAnywhere(
  uris: readonly string[],
  identity: SessionIdentity,
  options: SessionOptions,
): Promise<SwapServerSession> {
  let most: unknown
  for (const uri of uris)
    try {
      return await SwapServerSession.resume([uri], identity, options)
    } catch (failure) {
      const fenced = fencedOr(uri, failure)
      if (fenced instanceof FencedError) throw fenced
      if (most === undefined || telling(failure) > telling(most)) most = failure
    }
  throw most
}

/** Ends a session that lingers: the server frees its slabs. @throws as SwapServerSession.resume; FencedError */
export async function endSession(
  uris: readonly string[],
  identity: SessionIdentity,
  options: SessionOptions,
): Promise<void> {
  const deadline = performance.now() + ATTENDED_MS
  for (;;) {
    try {
      const session = await resumeAnywhere(uris, identity, { ...options, linger: 1 })
      return await session.close()
    } catch (failure) {
      const attended = failure instanceof SwapServerError && failure.code === 'EBUSY'
      if (!attended || performance.now() >= deadline) throw fencedOr(uris.join(' or '), failure)
    }
    await new Promise((resolve) => setTimeout(resolve, ATTENDED_RETRY_MS))
  }
}

/**
 * Asks a server that has failed whether another process has the session. It is left as it is.
 * @param limit milliseconds, shared out between its addresses: one of them may be silent
 * @returns undefined: it does not say so
 */
export async function askFenced(
  uris: readonly string[],
  identity: SessionIdentity,
  options: SessionOptions,
  limit: number,
): Promise<FencedError | undefined> {
  for (const uri of uris) {
    const signal = AbortSignal.timeout(Math.ceil(limit / uris.length))
    try {
      return void (await (await SwapServerSession.resume([uri], identity, { ...options, signal })).leave())
    } catch (failure) {
      const fenced = fencedOr(uri, failure)
      if (fenced instanceof FencedError) return fenced
    }
  }
  return undefined
}
