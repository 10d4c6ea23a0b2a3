import {
  ConfigurationError,
  formatSize,
  type RemoteSlab,
  type SessionIdentity,
  type SessionOptions,
  SwapServerError,
  SwapServerSession,
} from '@rdmakit/swap-server'
import { ConnectionRejectedError, VerbsError } from '@rdmakit/verbs'

/** What a server may say that says nothing of its memory; the next time, or at another address, it may say more. */
const MAY_RELENT = ['ETIMEDOUT', 'EACCES', 'EUSERS', 'EXDEV']

/** A session that was taken up, and the slabs that were found there. */
export interface Resumed {
  readonly session: SwapServerSession
  readonly slabs: readonly RemoteSlab[]
}

export interface NotResumed {
  readonly reason: string
  /** the server was there and does not have the session: its memory is empty */
  readonly ended: boolean
  /** nobody listens on any of its addresses */
  readonly refused: boolean
}

/**
 * Takes up a session at whichever of the server's addresses answers.
 * @throws ConfigurationError: a key that cannot be read, or slabs that are not of `slabSize` bytes
 */
export async function resumeSession(
  { uris, identity }: { readonly uris: readonly string[]; readonly identity: SessionIdentity },
  slabSize: number,
  options: SessionOptions,
): Promise<Resumed | NotResumed> {
  let reason = 'it has no address'
  let ended = false
  let refused = true
  for (const uri of uris) {
    let session: SwapServerSession | undefined
    try {
      session = await SwapServerSession.resume([uri], identity, options)
      if (session.slabSize !== slabSize)
        throw new ConfigurationError(
          `${session.uri} has slabs of ${formatSize(session.slabSize)}, and the volume ${formatSize(slabSize)}`,
        )
      return { session, slabs: await session.list() }
    } catch (failure) {
      await session?.leave()
      // Nothing is given up for a key that cannot be read, or is not the right one yet.
      if (failure instanceof ConfigurationError) throw failure
      reason = (failure as Error).message
      ended ||= failure instanceof SwapServerError && !MAY_RELENT.includes(failure.code)
      refused &&=
        failure instanceof VerbsError &&
        failure.code === 'ECONNREFUSED' &&
        !(failure instanceof ConnectionRejectedError)
      if (ended || options.signal?.aborted) break
    }
  }
  return { reason, ended, refused }
}

/** Ends a session that lingers: the server frees its slabs. @throws as SwapServerSession.resume */
export async function endSession(
  uris: readonly string[],
  identity: SessionIdentity,
  options: SessionOptions,
): Promise<void> {
  const session = await SwapServerSession.resume(uris, identity, { ...options, linger: 1 })
  await session.close()
}
