import { EXIT, ExitError, exitStatusOf } from '@rdmakit/operator-kit'
import type { RemoteSlab, SessionOptions, SwapServerError, SwapServerSession } from '@rdmakit/swap-server'
import { FencedError } from '../servers/fenced-error.js'
import { resumeSession, type VolumeShape } from '../servers/resume-session.js'
import type { KeptServer } from './kept-volume.js'

/** A server whose session this process has taken up, with the slabs that it found there. */
export interface ResumedServer {
  readonly kept: KeptServer
  readonly session: SwapServerSession
  readonly slabs: readonly RemoteSlab[]
}

/** A server that takes part no more, and why. */
export interface GoneServer {
  readonly kept: KeptServer
  readonly reason: string
}

export interface TakenSessions {
  readonly resumed: readonly ResumedServer[]
  readonly gone: readonly GoneServer[]
}

/** A server that does not let this process have its session, and would not later either. */
type ForbiddingServer = GoneServer & { readonly forbidden: SwapServerError }

/** The answers of servers that are asked for their sessions, all at once. */
interface Asked {
  readonly resumed: readonly ResumedServer[]
  readonly ended: readonly GoneServer[]
  readonly forbidden: readonly ForbiddingServer[]
  /** they may answer yet */
  readonly silent: readonly GoneServer[]
  /** of this process: it goes on with none of them */
  readonly failure: unknown
}

/** Asks servers for their sessions, all at once. */
export async function askAll(
  servers: readonly KeptServer[],
  volume: VolumeShape,
  options: SessionOptions,
): Promise<Asked> {
  // All of them, for one that throws must not leave the sessions of others.
  const outcomes = await Promise.allSettled(
    servers.map(async (kept) => ({ kept, ...(await resumeSession(kept, volume, options)) })),
  )
  const answers = outcomes.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
  const failures = outcomes.flatMap((each) => (each.status === 'rejected' ? [each.reason] : []))
  const refused = answers.filter((each) => 'reason' in each)
  const isForbidden = (each: (typeof refused)[number]): each is (typeof refused)[number] & ForbiddingServer =>
    each.forbidden !== undefined
  return {
    resumed: answers.filter((each) => 'session' in each),
    ended: refused.filter((each) => each.ended),
    forbidden: refused.filter(isForbidden),
    silent: refused.filter((each) => !each.ended && !isForbidden(each)),
    failure: failures.find((each) => each instanceof FencedError) ?? failures[0],
  }
}

/** Its data are still there, and would be lost if this process continued without it. */
export function refusedBy({ kept: { uris, linger }, forbidden }: ForbiddingServer): ExitError {
  const status = exitStatusOf(forbidden)
  return new ExitError(
    `${uris.join(' or ')} refuses to return the volume's slabs (${forbidden.code}): ${forbidden.message}. No other server has them, so nothing was given up, and requests wait: fix that and start again, within ${linger / 1000} s of the end of the last process that had them`,
    status === EXIT.failed ? EXIT.unavailable : status,
  )
}
